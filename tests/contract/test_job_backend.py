"""The contract that every backend of jobs keeps."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubetrain_components.jobs.backend import JobBackend, JobExists
from kubetrain_components.jobs.job import Job, RestartPolicy
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine, Phase
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.jobs.local.process_guard import processes_of
from support.jobs import MemoryBackend, job, script

FOREVER = script("import time; print('up'); time.sleep(600)")
QUICK = script("print('one'); print('two')")


class Memory:
    """The fake ends jobs as the local backend does with real processes."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.backend.lines = [LogLine("chief-0", "one"), LogLine("chief-0", "two")]

    def start(self, wanted: Job) -> JobHandle:
        handle = self.backend.create(wanted)
        command = wanted.replicas[0].command
        if command == QUICK:
            threading.Timer(0.1, self.backend.finish, [handle.name, Phase.SUCCEEDED], {"exit_code": 0}).start()
        elif command != FOREVER:
            threading.Timer(0.1, self.backend.finish, [handle.name, Phase.FAILED], {"exit_code": 3}).start()
        return handle


class Local:
    def __init__(self, backend: LocalBackend) -> None:
        self.backend = backend

    def start(self, wanted: Job) -> JobHandle:
        return self.backend.create(wanted)


@pytest.fixture(params=["memory", "local"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory | Local]:
    if request.param == "memory":
        yield Memory()
        return
    with LocalBackend(tmp_path / "jobs") as backend:
        yield Local(backend)


def await_state(backend: JobBackend, handle: JobHandle, wanted: Callable[[JobState], bool]) -> JobState:
    for state in backend.watch(handle):
        assert state is not None, "the job is gone"
        if wanted(state):
            return state
    raise AssertionError("the watch ended")


def test_what_is_created_is_found_with_its_labels_and_annotations(site: Memory | Local) -> None:
    wanted = job(FOREVER)
    assert site.backend.find(wanted) is None
    handle = site.start(wanted)
    found = site.backend.find(wanted)
    assert found is not None
    assert found.handle == handle
    assert found.labels == wanted.labels
    assert found.annotations == wanted.identity.annotations()


def test_a_name_can_be_used_only_once(site: Memory | Local) -> None:
    site.start(job(FOREVER))
    with pytest.raises(JobExists):
        site.start(job(FOREVER))


def test_a_job_runs_then_succeeds_with_all_its_pods(site: Memory | Local) -> None:
    wanted = job(QUICK, QUICK)
    handle = site.start(wanted)
    state = await_state(site.backend, handle, lambda state: state.is_over)
    assert state.phase is Phase.SUCCEEDED
    assert {(pod.name, pod.phase, pod.exit_code) for pod in state.pods} == {
        ("chief-0", Phase.SUCCEEDED, 0),
        ("worker1-0", Phase.SUCCEEDED, 0),
    }
    assert site.backend.find(wanted) is not None, "its record stays for a restarted launcher"


def test_a_failed_job_says_so_with_its_exit_code(site: Memory | Local) -> None:
    handle = site.start(job(script("raise SystemExit(3)"), policy=RestartPolicy.NEVER))
    state = await_state(site.backend, handle, lambda state: state.is_over)
    assert state.phase is Phase.FAILED
    assert state.pods[0].exit_code == 3


def test_the_watch_yields_at_least_every_second(site: Memory | Local) -> None:
    handle = site.start(job(FOREVER))
    await_state(site.backend, handle, lambda state: state.phase is Phase.RUNNING)
    began = time.monotonic()
    watch = site.backend.watch(handle)
    for _ in range(3):
        assert next(watch) is not None
    assert time.monotonic() - began < 60


def test_logs_are_complete_in_order_and_end_with_the_job(site: Memory | Local) -> None:
    handle = site.start(job(QUICK))
    assert [line.text for line in site.backend.logs(handle) if line.pod == "chief-0"] == ["one", "two"]
    assert [line.text for line in site.backend.logs(handle)] == ["one", "two"], (
        "a second reader begins at the beginning"
    )


def test_annotations_are_kept(site: Memory | Local) -> None:
    handle = site.start(job(FOREVER))
    site.backend.annotate(handle, {"kubetrain/verdict": "failed"})
    found = site.backend.find(job(FOREVER))
    assert found is not None
    assert found.annotations["kubetrain/verdict"] == "failed"
    assert found.annotations["kubetrain/run-id"] == "run-1"


def test_notes_are_soon_on_the_job(site: Memory | Local) -> None:
    handle = site.start(job(FOREVER))
    site.backend.note(handle, {"kubetrain/progress": "step 3"})
    await_state(site.backend, handle, lambda state: state.annotations.get("kubetrain/progress") == "step 3")


def test_delete_ends_a_running_job_and_its_watches(site: Memory | Local) -> None:
    handle = site.start(job(FOREVER, FOREVER))
    await_state(site.backend, handle, lambda state: state.phase is Phase.RUNNING)
    watch = site.backend.watch(handle)
    assert next(watch) is not None
    site.backend.delete(handle)
    assert site.backend.find(job(FOREVER, FOREVER)) is None
    assert list(watch)[-1] is None
    assert list(site.backend.logs(handle)) is not None
    site.backend.delete(handle)  # already gone: not an error


def test_a_later_job_of_the_same_name_is_another_job(site: Memory | Local) -> None:
    first = site.start(job(FOREVER))
    site.backend.delete(first)
    second = site.start(job(FOREVER))
    assert first != second
    assert list(site.backend.watch(first)) == [None]
    site.backend.delete(first)
    assert site.backend.find(job(FOREVER)) is not None, "a stale handle deletes nothing"


def test_leaving_the_local_backend_leaves_no_process(tmp_path: Path) -> None:
    with LocalBackend(tmp_path / "jobs") as backend:
        handle = backend.create(job(FOREVER, FOREVER))
        await_state(backend, handle, lambda state: state.phase is Phase.RUNNING)
        mark = next(iter(backend._guard_mark))
        assert len(processes_of(mark)) == 2
    assert processes_of(mark) == []


def test_the_times_of_local_pods_include_their_restarts(tmp_path: Path) -> None:
    crashing = job(script("raise SystemExit(137)"), policy=RestartPolicy.EXIT_CODE, backoff_limit=9)
    before = time.time()
    with LocalBackend(tmp_path / "jobs") as backend:
        assert backend.times(crashing).pods == ()
        handle = backend.create(crashing)
        await_state(backend, handle, lambda state: state.pods[0].restarts == 1)
        (running,) = backend.times(crashing).pods
        assert before < running.created <= running.started < running.restarted[0] < time.time()
        other = job(QUICK, run_id="run-2")
        await_state(backend, backend.create(other), lambda state: state.is_over)
        (over,) = backend.times(other).pods
        assert over.started < over.ended < time.time()
