"""The engine's policy: create or attach, budgets, cancelling, and reliable verdicts."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from kubetrain_components.jobs import following
from kubetrain_components.jobs.annotations import (
    FAILED,
    PROGRESS_ANNOTATION,
    SECONDS_RUNNING_ANNOTATION,
    VERDICT_ANNOTATION,
)
from kubetrain_components.jobs.budgets import Budgets
from kubetrain_components.jobs.follow import JobNotOurs, create_or_attach, run_job
from kubetrain_components.jobs.following import together
from kubetrain_components.jobs.job import Elastic, Job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import JobLogs
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine, Phase
from kubetrain_components.jobs.kubernetes.errors import Unreachable
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.troubles import Trouble, TroubleKind
from kubetrain_components.jobs.verdict import JobFailed, culprit_of, describe, has_lost_proof, lead_result
from support.jobs import MemoryBackend, job, script

JOB = job(script("chief"), script("worker"), backoff_limit=3)
NAME = JOB.identity.name


def ignore(line: LogLine) -> None:
    pass


@contextmanager
def running(
    backend: MemoryBackend, run: Job = JOB, attempt_of: Job | None = None, **options: object
) -> Iterator[list[object]]:
    """Run run_job in a thread until the job exists; the list gets its result or the exception that it raised."""
    outcome: list[object] = []

    def target() -> None:
        try:
            outcome.append(run_job(attempt_of or run, backend, options.pop("on_line", ignore), **options))
        except BaseException as error:  # noqa: BLE001
            outcome.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    while not outcome and run.identity.name not in backend.jobs:
        pass
    yield outcome
    thread.join(60)
    assert not thread.is_alive()


def test_a_job_succeeds_when_every_pod_did() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        backend.finish(NAME, Phase.SUCCEEDED, exit_code=0)
    assert isinstance(outcome[0], JobState)


def test_the_jobs_own_success_is_no_proof_while_a_pod_still_runs() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        chief, worker = backend.jobs[NAME].pods
        backend.change(NAME, phase=Phase.SUCCEEDED, pods=(replace(chief, phase=Phase.SUCCEEDED), worker))
        threading.Event().wait(0.2)
        assert not outcome, "it waits for the worker"
        failed = replace(worker, phase=Phase.FAILED, exit_code=1, finished=1.0)
        backend.change(NAME, pods=(replace(chief, phase=Phase.SUCCEEDED), failed))
    assert "worker1-0 exited with code 1" in str(outcome[0])


def test_a_job_that_lost_a_pod_did_not_succeed() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        chief, _ = backend.jobs[NAME].pods
        backend.change(NAME, phase=Phase.SUCCEEDED, pods=(replace(chief, phase=Phase.SUCCEEDED),))
    assert isinstance(outcome[0], JobFailed)
    assert "1 of 2 pods succeeded" in str(outcome[0])


def test_an_elastic_job_succeeds_without_a_pod_that_still_looks_for_the_others() -> None:
    elastic = replace(JOB, elastic=Elastic(min_replicas=1, max_replicas=2))
    backend = MemoryBackend()
    with running(backend, elastic) as outcome:
        chief, worker = backend.jobs[NAME].pods
        backend.change(NAME, phase=Phase.SUCCEEDED, pods=(replace(chief, phase=Phase.SUCCEEDED), worker))
    assert isinstance(outcome[0], JobState)


def test_an_elastic_job_does_not_succeed_without_its_lead() -> None:
    elastic = replace(JOB, elastic=Elastic(min_replicas=1, max_replicas=2))
    backend = MemoryBackend()
    with running(backend, elastic) as outcome:
        chief, worker = backend.jobs[NAME].pods
        failed = replace(chief, phase=Phase.FAILED, exit_code=1, finished=1.0)
        backend.change(NAME, phase=Phase.SUCCEEDED, pods=(failed, replace(worker, phase=Phase.SUCCEEDED)))
    assert "chief-0 exited with code 1" in str(outcome[0])


def test_failed_dominates_while_other_pods_run() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        chief, worker = backend.jobs[NAME].pods
        failed = replace(worker, phase=Phase.FAILED, exit_code=137, finished=2.0)
        backend.change(NAME, phase=Phase.FAILED, pods=(chief, failed))
    assert "was killed by SIGKILL (exit code 137)" in str(outcome[0])
    assert backend.jobs[NAME].annotations[VERDICT_ANNOTATION] == "failed"


def test_the_first_pod_to_fail_is_blamed_with_its_words_and_its_log() -> None:
    backend = MemoryBackend()
    backend.lines = [LogLine("worker1-0", f"line {number}") for number in range(50)]
    heard: list[LogLine] = []
    with running(backend, on_line=heard.append) as outcome:
        chief, worker = backend.jobs[NAME].pods
        words = '{"status": "failed", "error": "rank 1 ran out of memory", "curable": true}'
        backend.change(
            NAME,
            phase=Phase.FAILED,
            pods=(
                replace(chief, phase=Phase.FAILED, exit_code=1, finished=3.0),
                replace(worker, phase=Phase.FAILED, exit_code=1, finished=2.0, last_words=words, restarts=3),
            ),
        )
    error = outcome[0]
    assert isinstance(error, JobFailed)
    assert str(error) == "launch_training failed: worker1-0: rank 1 ran out of memory (after 3 restarts)"
    assert error.log_tail[-1] == "line 49"
    assert len(error.log_tail) == 20
    assert len([line for line in heard if line.text.startswith("line")]) == 50


def test_what_no_restart_can_cure_ends_the_job_at_once() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        chief, worker = backend.jobs[NAME].pods
        words = '{"status": "failed", "error": "the dataset has no folder \'val\'", "curable": false}'
        failed = replace(chief, phase=Phase.FAILED, exit_code=1, finished=1.0, last_words=words)
        backend.change(NAME, pods=(failed, worker))
    assert str(outcome[0]) == "launch_training failed: chief-0: the dataset has no folder 'val'"
    assert backend.deleted == [NAME]


def test_the_last_lines_are_those_of_the_pod_that_no_restart_can_cure_though_it_restarts() -> None:
    backend = MemoryBackend()
    backend.lines = [LogLine("chief-0", "reading the dataset"), LogLine("worker1-0", "connection closed by peer")]
    heard: list[str] = []
    with running(backend, on_line=lambda line: heard.append(line.text)) as outcome:
        chief, worker = backend.jobs[NAME].pods
        lost = replace(worker, phase=Phase.RUNNING, restarts=1, exit_code=1, finished=1.0, last_words=LOST)
        backend.change(NAME, pods=(chief, lost))
        while "exited with code 1; restarting" not in heard and not outcome:
            time.sleep(0.01)
        words = '{"status": "failed", "error": "the dataset has no folder \'val\'", "curable": false}'
        restarted = replace(chief, phase=Phase.RUNNING, restarts=1, exit_code=1, finished=2.0, last_words=words)
        backend.change(NAME, pods=(restarted, lost))
    (failure,) = outcome
    assert isinstance(failure, JobFailed)
    assert "no folder 'val'" in str(failure)
    assert failure.log_tail == ("reading the dataset",)


def test_an_error_that_was_overcome_while_no_launcher_looked_ends_no_job() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    chief, worker = backend.jobs[NAME].pods
    words = '{"status": "failed", "error": "no space left", "curable": false}'
    failed = replace(chief, restarts=1, exit_code=1, finished=1.0, last_words=words)
    backend.change(NAME, pods=(failed, worker))
    heard: list[str] = []
    with running(backend, on_line=lambda line: heard.append(line.text)) as outcome:
        while not heard and not outcome:
            time.sleep(0.01)
        assert not outcome
        backend.change(NAME, pods=(replace(failed, restarts=2, finished=2.0), worker))
    assert "no space left" in str(outcome[0]), "now it has failed again"


def test_a_restart_is_announced_once() -> None:
    backend = MemoryBackend()
    heard: list[str] = []
    with running(backend, on_line=lambda line: heard.append(f"{line.pod} {line.text}")):
        chief, worker = backend.jobs[NAME].pods
        lost = replace(worker, exit_code=137, finished=5.0)
        backend.change(NAME, pods=(chief, replace(lost, phase=Phase.FAILED)))
        threading.Event().wait(0.2)
        assert heard == [], "it is not known yet if the pod restarts"
        backend.change(NAME, pods=(chief, replace(lost, restarts=1)))
        threading.Event().wait(0.2)
        backend.finish(NAME, Phase.SUCCEEDED)
    assert heard == ["worker1-0 was killed by SIGKILL (exit code 137); restarting"]


@pytest.mark.parametrize("count", [8, 9])
def test_many_restarts_at_once_are_one_line_for_each_cause(count: int) -> None:
    backend, many = MemoryBackend(), job(*[script("pod")] * (count + 2), backoff_limit=1000)
    heard: list[str] = []
    with running(backend, many, on_line=lambda line: heard.append(f"{line.pod} {line.text}")):
        chief, failed, *killed = backend.jobs[NAME].pods
        restarted = [replace(pod, exit_code=137, finished=5.0, restarts=1) for pod in killed]
        failed = replace(failed, exit_code=3, finished=5.0, restarts=1)
        backend.change(NAME, pods=(chief, failed, *restarted))
        while not any("SIGKILL" in line for line in heard):
            time.sleep(0.01)
        backend.finish(NAME, Phase.SUCCEEDED)
    assert "worker1-0 exited with code 3; restarting" in heard
    lines = [line for line in heard if "SIGKILL" in line]
    assert len(lines) == (8 if count == 8 else 1)
    if count > 8:
        assert lines[0].startswith("worker2-0 was killed by SIGKILL (exit code 137); restarting; ")
        assert "8 more pods: worker3-0, worker4-0, " in lines[0]


def test_the_tail_of_each_pod_has_its_restart() -> None:
    lines = [LogLine(f"worker-{number}", "exited with code 1; restarting") for number in range(1000)]
    logs = JobLogs(iter(together(lines)), ignore, ignore, "worker-0")
    logs.drain(60)
    assert logs.tail("worker-1") == logs.tail("worker-999") == [lines[-1].text]


def test_a_job_deleted_behind_our_back_is_a_failure() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        backend.vanish(NAME)
    assert "was deleted by someone else" in str(outcome[0])


def test_a_job_replaced_by_another_of_its_name_is_not_ours() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        backend.vanish(NAME)
        backend.create(JOB)
        threading.Event().wait(0.2)
        backend.finish(NAME, Phase.SUCCEEDED)
    assert f"job {NAME} was deleted" in str(outcome[0])


@pytest.mark.parametrize(
    ("budgets", "phase", "pod_phase", "says"),
    [
        (Budgets(queue_seconds=5), Phase.SUSPENDED, Phase.PENDING, "waiting in the queue for 7 s, more than the 5 s"),
        (Budgets(start_seconds=5), Phase.RUNNING, Phase.PENDING, "starting for 7 s, more than the 5 s"),
        (Budgets(run_seconds=5), Phase.RUNNING, Phase.RUNNING, "running for 7 s, more than the 5 s"),
    ],
)
def test_each_budget_counts_its_own_time(budgets: Budgets, phase: Phase, pod_phase: Phase, says: str) -> None:
    backend = MemoryBackend()
    handle = backend.create(JOB)
    backend.change(NAME, phase=phase, pods=tuple(replace(pod, phase=pod_phase) for pod in backend.jobs[NAME].pods))
    with pytest.raises(JobFailed, match=says):
        run_job(JOB, backend, ignore, budgets, clock=steps_of(7.0))
    assert backend.deleted == [handle.name]


def test_time_in_the_queue_is_not_time_at_work() -> None:
    backend = MemoryBackend()
    handle = backend.create(JOB)
    backend.change(NAME, phase=Phase.SUSPENDED)
    now = [0.0]
    states = iter([Phase.SUSPENDED, Phase.RUNNING])
    original = backend.watch

    def watch(_: object) -> Iterator[JobState | None]:
        for phase in states:
            now[0] += 100
            backend.change(NAME, phase=phase)
            yield backend.jobs[NAME]
            now[0] += 1
        backend.finish(NAME, Phase.SUCCEEDED)
        yield from original(handle)

    backend.watch = watch
    run_job(JOB, backend, ignore, Budgets(run_seconds=150), clock=lambda: now[0])


def test_no_job_is_ended_for_a_state_that_is_outdated() -> None:
    backend = MemoryBackend()
    handle = backend.create(JOB)
    pending = tuple(replace(pod, phase=Phase.PENDING) for pod in backend.jobs[NAME].pods)
    outdated = replace(backend.jobs[NAME], pods=pending)
    watch = backend.watch

    def watch_late(_: object) -> Iterator[JobState | None]:
        yield outdated
        backend.finish(NAME, Phase.SUCCEEDED)
        yield outdated
        yield from watch(handle)

    backend.watch = watch_late
    assert isinstance(run_job(JOB, backend, ignore, Budgets(start_seconds=5), clock=steps_of(7.0)), JobState)
    assert backend.deleted == []


def interrupted(_: object) -> Iterator[JobState | None]:
    raise KeyboardInterrupt
    yield


def test_ctrl_c_deletes_the_job() -> None:
    backend = MemoryBackend()
    backend.watch = interrupted
    with pytest.raises(KeyboardInterrupt):
        run_job(JOB, backend, ignore)
    assert backend.deleted == [NAME]


def test_an_interrupt_before_the_verdict_annotates_none(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    backend.is_drained = True
    backend.create(JOB)
    backend.finish(NAME, Phase.SUCCEEDED, exit_code=0)
    monkeypatch.setattr("kubetrain_components.jobs.follow.judge", interrupted_call)
    with pytest.raises(KeyboardInterrupt):
        run_job(JOB, backend, ignore)
    assert VERDICT_ANNOTATION not in backend.jobs[NAME].annotations


def interrupted_call(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_drained", [False, True])
def test_an_interrupt_between_the_verdict_and_the_end_of_the_pods_leaves_no_pod_behind(is_drained: bool) -> None:
    """They are deleted with the job, or by the next launcher, or by the reaper, which reads the verdict."""
    backend = MemoryBackend()
    backend.is_drained = is_drained
    backend.create(JOB)
    backend.finish(NAME, Phase.FAILED, exit_code=1, finished=1.0)
    annotations = backend.jobs[NAME].annotations

    def interrupt(handle: JobHandle) -> None:
        annotations.update(backend.jobs[NAME].annotations)
        raise KeyboardInterrupt

    backend.clean = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_job(JOB, backend, ignore)
    assert (backend.deleted, backend.left) == (([], [NAME]) if is_drained else ([NAME], []))
    assert annotations[VERDICT_ANNOTATION] == FAILED


def test_a_launcher_whose_run_continues_leaves_its_job_alone() -> None:
    backend = MemoryBackend()
    backend.is_drained = True
    backend.watch = interrupted
    with pytest.raises(KeyboardInterrupt):
        run_job(JOB, backend, ignore)
    assert (backend.deleted, list(backend.jobs)) == ([], [NAME])


def test_a_restarted_launcher_takes_the_verdict_of_the_one_before_although_the_pods_are_gone() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    backend.finish(NAME, Phase.SUCCEEDED, last_words='{"status": "completed", "step": 3}')
    first = run_job(JOB, backend, ignore)
    backend.change(NAME, pods=())
    again = run_job(JOB, backend, ignore)
    assert lead_result(JOB, first) == lead_result(JOB, again) == {"status": "completed", "step": 3}


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED])
def test_pods_are_deleted_once_the_verdict_is_on_the_job(phase: Phase) -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    backend.finish(NAME, phase, exit_code=0 if phase is Phase.SUCCEEDED else 1, finished=1.0)
    verdicts: list[object] = []
    clean = backend.clean

    def cleaned(handle: JobHandle) -> None:
        verdicts.append(backend.jobs[NAME].annotations[VERDICT_ANNOTATION])
        clean(handle)

    backend.clean = cleaned
    with pytest.raises(JobFailed) if phase is Phase.FAILED else nullcontext():
        run_job(JOB, backend, ignore)
    assert (verdicts, backend.cleaned) == ([phase.lower()], [NAME])


def failing_by(backend: MemoryBackend, **cause: bool) -> list[str]:
    """Make each attempt fail as soon as it is created; return the list of their names."""
    made: list[str] = []
    create = backend.create

    def fail_at_once(wanted: Job) -> JobHandle:
        handle = create(wanted)
        made.append(handle.name)
        backend.finish(handle.name, Phase.FAILED, exit_code=143, finished=1.0, **cause)
        return handle

    backend.create = fail_at_once
    return made


@pytest.mark.parametrize("cause", ["was_disrupted", "was_deleted"])
def test_a_job_whose_pods_are_disrupted_is_retried_three_times(cause: str) -> None:
    backend = MemoryBackend()
    made = failing_by(backend, **{cause: True})
    heard: list[LogLine] = []
    with pytest.raises(JobFailed, match="chief-0 was killed by SIGTERM"):
        run_job(JOB, backend, heard.append)
    assert made == [NAME, f"{NAME}-a2", f"{NAME}-a3", f"{NAME}-a4"]
    assert [line.text.rpartition("; ")[2] for line in heard] == 3 * ["the job restarts once all of its pods have ended"]


def test_the_deadline_counts_the_time_of_all_attempts() -> None:
    backend, now = MemoryBackend(), [0.0]

    def disrupted_after_90_seconds(handle: JobHandle) -> Iterator[JobState]:
        for _ in range(2):
            yield backend.jobs[handle.name]
            now[0] += 90
        backend.finish(handle.name, Phase.FAILED, exit_code=143, was_disrupted=True, finished=1.0)
        yield backend.jobs[handle.name]

    backend.watch = disrupted_after_90_seconds
    with pytest.raises(JobFailed, match="running for 270 s, more than the 250 s allowed"):
        run_job(JOB, backend, ignore, Budgets(run_seconds=250), clock=lambda: now[0])
    assert backend.deleted == [f"{NAME}-a3"]


def test_a_replaced_pod_may_end_with_the_others_before_its_start_is_reported() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        chief, worker = backend.jobs[NAME].pods
        chief = replace(chief, phase=Phase.SUCCEEDED, exit_code=0, finished=9.0)
        replaced = replace(worker, phase=Phase.PENDING, exit_code=143, finished=1.0, restarts=1, replacements=1)
        backend.change(NAME, pods=(chief, replaced))
        time.sleep(0.5)
        assert not outcome, "its new pod may have met the others"
        backend.change(NAME, pods=(chief, replace(replaced, phase=Phase.SUCCEEDED, exit_code=0, finished=9.5)))
        backend.change(NAME, phase=Phase.SUCCEEDED)
    assert isinstance(outcome[0], JobState)


def test_a_verdict_that_cannot_be_written_costs_no_attempt() -> None:
    backend = MemoryBackend()
    backend.annotate = lambda handle, values: False
    made = failing_by(backend, was_disrupted=True)
    with pytest.raises(JobFailed, match="chief-0 was killed by SIGTERM"):
        run_job(JOB, backend, ignore)
    assert made == [NAME, f"{NAME}-a2", f"{NAME}-a3", f"{NAME}-a4"]


def test_a_job_that_fails_by_itself_is_not_retried() -> None:
    backend = MemoryBackend()
    made = failing_by(backend)
    with pytest.raises(JobFailed):
        run_job(JOB, backend, ignore)
    assert made == [NAME]


def test_the_next_attempt_begins_when_every_pod_of_the_one_before_has_ended() -> None:
    backend = MemoryBackend()
    with running(backend) as outcome:
        chief, worker = backend.jobs[NAME].pods
        disrupted = replace(chief, phase=Phase.FAILED, exit_code=143, was_disrupted=True, finished=1.0)
        backend.change(NAME, phase=Phase.FAILED, pods=(disrupted, worker))
        while not backend.cleaned:
            time.sleep(0.01)
        time.sleep(0.2)
        assert (list(backend.jobs), backend.cleaned[-1]) == ([NAME], NAME)
        backend.finish(NAME, Phase.FAILED, exit_code=143)
        while f"{NAME}-a2" not in backend.jobs:
            time.sleep(0.01)
        backend.finish(f"{NAME}-a2", Phase.SUCCEEDED, exit_code=0)
    assert outcome[0].handle.name == f"{NAME}-a2"


def test_a_launcher_that_restarts_after_the_verdict_ends_the_pods_that_are_left() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    backend.change(NAME, phase=Phase.FAILED, annotations={**JOB.identity.annotations(), VERDICT_ANNOTATION: "failed"})
    with running(backend, attempt_of=JOB) as outcome:
        while not backend.cleaned and not outcome:
            time.sleep(0.01)
        assert NAME in backend.cleaned
        backend.finish(NAME, Phase.FAILED, exit_code=1)
        while f"{NAME}-a2" not in backend.jobs:
            time.sleep(0.01)
        backend.finish(f"{NAME}-a2", Phase.SUCCEEDED, exit_code=0)
    assert outcome[0].handle.name == f"{NAME}-a2"


def test_restarts_that_the_operator_forgets_are_counted() -> None:
    limited = replace(JOB, backoff_limit=4)
    backend = MemoryBackend()
    backend.create(limited)
    before = backend.jobs[NAME]
    chief, worker = before.pods
    lost = replace(worker, exit_code=137, finished=5.0, restarts=4, cause="was evicted: the node is low on memory")
    backend.watch = lambda handle: iter([before, replace(before, pods=(chief, lost))])
    with pytest.raises(JobFailed) as failed:
        run_job(limited, backend, ignore)
    assert str(failed.value) == (
        "launch_training failed: worker1-0 was evicted: the node is low on memory; no restarts are left"
    )
    assert backend.deleted == [NAME]


def test_trouble_is_reported_once_and_fails_the_job_after_its_timeout() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    trouble = Trouble(kind=TroubleKind.IMAGE_PULL, subject="worker1-0", evidence="no such image")
    pods = tuple(replace(pod, phase=Phase.PENDING) for pod in backend.jobs[NAME].pods)
    backend.change(NAME, pods=pods, troubles=(trouble,))
    heard: list[str] = []
    times = itertools.count(0.0, 50.0)
    with pytest.raises(JobFailed) as failed:
        run_job(JOB, backend, lambda line: heard.append(f"{line.pod} {line.text}"), clock=lambda: next(times))
    assert (str(failed.value), failed.value.trouble) == (f"launch_training failed: {trouble.failure}", trouble.kind)
    line, cause = heard
    assert line == f"worker1-0 {trouble.notice}"
    assert cause.startswith(f"{JOB.lead} {trouble.failure}")
    assert line.count("worker1-0") == str(failed.value).count("worker1-0") == 1


def test_the_time_of_a_training_without_progress_is_annotated_for_the_next_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "SECONDS_WITHOUT_PROGRESS", 0.0)
    backend = MemoryBackend()
    backend.create(JOB)
    state, times = backend.jobs[NAME], itertools.count(0.0, 50.0)
    backend.watch = lambda handle: iter([state, state])
    with pytest.raises(JobFailed, match="stopped reporting"):
        run_job(JOB, backend, ignore, clock=lambda: next(times))
    annotations = backend.jobs[NAME].annotations
    assert float(annotations[SECONDS_RUNNING_ANNOTATION]) >= 50
    assert PROGRESS_ANNOTATION not in annotations, "it would say that all pods have run"


def test_the_leads_progress_is_annotated_on_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PROGRESS_SECONDS", 0.0)
    backend = MemoryBackend()
    backend.create(JOB)
    lines = [LogLine("chief-0", "[kubetrain] step=3/9 loss=0.5"), LogLine("worker1-0", "[kubetrain] step=9/9 loss=0.1")]
    backend.logs = lambda handle, only: iter(lines)
    with running(backend):
        deadline = time.monotonic() + 60
        while PROGRESS_ANNOTATION not in backend.jobs[NAME].annotations and time.monotonic() < deadline:
            time.sleep(0.01)
        backend.finish(NAME, Phase.SUCCEEDED, exit_code=0)
    assert backend.jobs[NAME].annotations[PROGRESS_ANNOTATION] == lines[0].text
    assert float(backend.jobs[NAME].annotations[SECONDS_RUNNING_ANNOTATION]) >= 0


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")])
def test_lines_that_cannot_be_shown_are_a_warning_and_not_a_verdict(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    backend = MemoryBackend()
    backend.lines = [LogLine("chief-0", "hello"), LogLine("chief-0", "again")]

    def full(line: LogLine) -> None:
        raise error

    with running(backend, on_line=full) as outcome:
        backend.finish(NAME, Phase.SUCCEEDED, exit_code=0)
    assert isinstance(outcome[0], JobState)
    assert len([record for record in caplog.records if str(error) in record.getMessage()]) == 1


def test_a_log_that_cannot_be_read_is_not_a_verdict() -> None:
    backend = MemoryBackend()

    def broken(handle: JobHandle, only: str) -> Iterator[LogLine]:
        raise OSError(24, "Too many open files")
        yield

    backend.logs = broken
    with running(backend) as outcome:
        backend.finish(NAME, Phase.SUCCEEDED, exit_code=0)
    assert isinstance(outcome[0], JobState)


def test_pods_are_kept_while_the_verdict_is_not_on_the_job() -> None:
    backend = MemoryBackend()
    backend.annotate = lambda handle, values: False
    with running(backend) as outcome:
        backend.finish(NAME, Phase.SUCCEEDED, exit_code=0)
    assert isinstance(outcome[0], JobState)
    assert backend.cleaned == []


PROOF = '{"status": "completed", "step": 3, "checkpoint": "step-3", "manifest_sha256": "abc"}'


def ending(backend: MemoryBackend, lead_words: str = PROOF, **worker_changes: object) -> None:
    """Let the operator report success, and the chief succeed with these words."""
    chief, worker = backend.jobs[NAME].pods
    succeeded = replace(chief, phase=Phase.SUCCEEDED, exit_code=0, last_words=lead_words)
    backend.change(NAME, phase=Phase.SUCCEEDED, pods=(succeeded, replace(worker, **worker_changes)))


def test_a_laggard_does_not_fail_a_run_whose_rank_0_proved_its_checkpoint() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    ending(backend, phase=Phase.RUNNING)
    heard: list[str] = []
    state = run_job(JOB, backend, lambda line: heard.append(line.text), clock=steps_of(100.0))
    assert lead_result(JOB, state)["checkpoint"] == "step-3"
    assert (backend.deleted, backend.cleaned) == ([], [NAME]), "its pod is ended after the verdict"
    assert "worker1-0 is still Running" in heard[-1]


def test_a_node_that_is_lost_after_the_last_checkpoint_fails_nothing() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    ending(backend, phase=Phase.FAILED, exit_code=137, was_disrupted=True, finished=1.0)
    assert isinstance(run_job(JOB, backend, ignore), JobState)
    assert list(backend.jobs) == [NAME]


def test_a_pod_that_fails_by_itself_fails_the_job_whatever_rank_0_says() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    ending(backend, phase=Phase.FAILED, exit_code=1, finished=1.0)
    with pytest.raises(JobFailed, match="worker1-0 exited with code 1"):
        run_job(JOB, backend, ignore)


@pytest.mark.parametrize("words", ["", '{"status": "stopped", "step": 3}'])
def test_a_laggard_fails_a_run_without_that_proof(words: str) -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    ending(backend, lead_words=words, phase=Phase.RUNNING)
    with pytest.raises(JobFailed, match=r"ending for .*worker1-0 is still Running"):
        run_job(JOB, backend, ignore, clock=steps_of(100.0))


def steps_of(seconds: float) -> Callable[[], float]:
    """Return a clock that advances by this much each time that it is read."""
    times = itertools.count(0.0, seconds)
    return lambda: next(times)


def test_a_success_that_nobody_saw_and_whose_pods_are_gone_is_left_to_its_checkpoint() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    backend.change(NAME, phase=Phase.SUCCEEDED, pods=(), message="PyTorchJob j is successfully completed.")
    for _ in range(2):  # and again after the verdict
        state = run_job(JOB, backend, ignore)
        assert has_lost_proof(JOB, state)
        assert backend.jobs[NAME].annotations[VERDICT_ANNOTATION] == "succeeded"


def test_a_success_of_a_batch_job_whose_report_is_gone_runs_again() -> None:
    transfer = replace(job(script("transfer")), kind=JobKind.BATCH_JOB)
    backend = MemoryBackend()
    backend.create(transfer)
    backend.change(NAME, phase=Phase.SUCCEEDED, pods=(), message="Reached expected number of succeeded pods")
    heard: list[str] = []
    again = replace(transfer, identity=transfer.identity.next_attempt())
    with running(backend, again, attempt_of=transfer, on_line=lambda line: heard.append(line.text)) as outcome:
        backend.finish(again.identity.name, Phase.SUCCEEDED, exit_code=0, last_words=PROOF)
    assert lead_result(transfer, outcome[0])["step"] == 3
    assert any("its pod was deleted with what it reported" in text for text in heard)
    assert not any("Reached expected number" in text for text in heard), "the message of a success is not a cause"


@pytest.mark.parametrize("ends", [Phase.SUCCEEDED, Phase.FAILED])
def test_a_sidecar_that_never_ends_is_named_and_ended(ends: Phase) -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    kind = TroubleKind.LINGERING
    trouble = Trouble(kind=kind, subject="chief-0", evidence="container vault-agent")
    code = 0 if ends is Phase.SUCCEEDED else 3
    pods = tuple(
        replace(pod, phase=ends, exit_code=code, finished=1.0, lingering=("vault-agent",), last_words="")
        for pod in backend.jobs[NAME].pods
    )
    backend.change(NAME, phase=Phase.RUNNING, pods=pods, troubles=(trouble,))
    heard: list[str] = []
    with pytest.raises(JobFailed) if code else nullcontext() as failed:
        run_job(JOB, backend, lambda line: heard.append(line.text), clock=steps_of(5.0))
    assert any("vault-agent" in text for text in heard)
    assert backend.deleted == [NAME], "a job that is not over would start its pods again"
    assert not code or "vault-agent" in str(failed.value)


def test_an_operator_that_is_away_when_all_pods_have_succeeded_does_not_keep_the_job() -> None:
    backend = MemoryBackend()
    backend.create(JOB)
    backend.change(NAME, pods=tuple(replace(pod, phase=Phase.SUCCEEDED) for pod in backend.jobs[NAME].pods))
    assert isinstance(run_job(JOB, backend, ignore, clock=steps_of(100.0)), JobState)


def test_a_cause_is_told_even_if_the_job_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "DRAIN_SECONDS", 0.1)  # the log of the job that stays does not end
    backend = MemoryBackend()
    backend.create(JOB)
    chief, worker = backend.jobs[NAME].pods
    words = '{"status": "failed", "error": "the dataset has no folder \'val\'", "curable": false}'
    failed = replace(chief, phase=Phase.FAILED, exit_code=1, finished=1.0, last_words=words)
    backend.change(NAME, pods=(failed, worker))
    backend.lines = [LogLine("chief-0", "Traceback")]

    heard: list[str] = []

    def delete(handle: JobHandle) -> None:
        while not any("no folder 'val'" in line for line in heard):  # a deletion may be retried for long
            time.sleep(0.01)
        raise Unreachable("the API server could not answer DELETE (etcdserver: leader changed)")

    backend.delete = delete
    with pytest.raises(JobFailed) as failed:
        run_job(JOB, backend, lambda line: heard.append(line.text))
    assert "the dataset has no folder 'val'" in str(failed.value)
    assert f"job {NAME} could not be deleted" in str(failed.value)
    assert "leader changed" in str(failed.value)


def test_attempts_after_disruptions_are_not_limited_while_the_training_makes_progress() -> None:
    backend = MemoryBackend()
    create = backend.create

    def fail_later(wanted: Job) -> JobHandle:
        handle = create(wanted)
        number = wanted.identity.attempt
        step = min(number, 6)  # from the sixth attempt on it is stuck
        backend.lines = [LogLine("chief-0", f"[kubetrain] step={step}/99 loss=0.5")]
        backend.finish(handle.name, Phase.FAILED, exit_code=143, was_disrupted=True, finished=1.0)
        return handle

    backend.create = fail_later
    with pytest.raises(JobFailed):
        run_job(JOB, backend, ignore)
    assert len(backend.jobs) == 6 + 3


LOST = '{"status": "failed", "error": "another process was lost in step 7: look for the one that failed first", '
LOST += '"curable": true}'


@pytest.mark.parametrize(
    ("worker_changes", "says"),
    [
        ({"last_words": '{"status": "failed", "error": "RuntimeError: shape mismatch"}'}, "worker1-0: RuntimeError"),
        ({"exit_code": 137, "cause": "ran out of memory"}, "worker1-0 ran out of memory"),
        ({"finished": 60.0, "was_disrupted": True, "cause": "was lost with its node"}, "worker1-0 was lost"),
        ({"finished": 1.0, "cause": "crashed an hour before"}, "chief-0: another process was lost"),
    ],
)
def test_a_pod_that_only_lost_another_one_is_not_blamed(worker_changes: dict[str, object], says: str) -> None:
    chief, worker = JOB.pods()
    chief = replace(chief, phase=Phase.FAILED, exit_code=1, finished=3600.0, last_words=LOST)
    worker = replace(worker, phase=Phase.FAILED, **{"exit_code": 1, "finished": 3600.0, **worker_changes})
    found = culprit_of((chief, replace(worker, finished=worker.finished + 3540 * (worker.finished == 60))))
    assert found is not None
    assert says in describe(found)


@pytest.mark.parametrize(("phase", "says"), [(Phase.RUNNING, "worker1-0 ran out"), (Phase.FAILED, "no space left")])
def test_an_end_that_a_restart_overcame_is_not_blamed_for_a_later_one(phase: Phase, says: str) -> None:
    words = '{"status": "failed", "error": "no space left", "curable": false}'
    chief, worker = JOB.pods()
    chief = replace(chief, phase=phase, restarts=1, exit_code=1, finished=1000.0, last_words=words)
    worker = replace(worker, phase=Phase.FAILED, exit_code=137, cause="ran out of memory", finished=1500.0)
    found = culprit_of((chief, worker))
    assert found is not None
    assert says in describe(found)


class TestWaitingForAnEarlierJob:
    """A launcher says what it waits for, gives up in time, and counts the job's own budgets only afterwards."""

    @pytest.fixture
    def stuck(self) -> MemoryBackend:
        backend = MemoryBackend()
        backend.create(JOB)
        finalizer = Trouble(kind=TroubleKind.DELETING, subject="the job", evidence="example.com/backup")
        backend.change(NAME, is_deleting=True, troubles=(finalizer,))
        return backend

    def test_a_job_that_is_never_gone_is_named_with_its_finalizers(self, stuck: MemoryBackend) -> None:
        heard: list[str] = []
        with pytest.raises(JobFailed, match=r"start_seconds.*example\.com/backup"):
            run_job(JOB, stuck, lambda line: heard.append(line.text), clock=steps_of(100.0))
        assert f"job {NAME} is being deleted: waiting until it is gone" in heard
        assert any("example.com/backup" in text for text in heard)

    def test_a_pod_that_never_ends_is_named_with_its_node(self) -> None:
        backend = MemoryBackend()
        backend.create(JOB)
        chief, worker = backend.jobs[NAME].pods
        cut_off = Trouble(kind=TroubleKind.NODE, subject="worker1-0", evidence="node2")
        backend.change(
            NAME,
            phase=Phase.FAILED,
            annotations={**backend.jobs[NAME].annotations, VERDICT_ANNOTATION: "failed"},
            pods=(replace(chief, phase=Phase.FAILED), worker),
            troubles=(cut_off,),
        )
        heard: list[str] = []
        with pytest.raises(JobFailed, match=r"start_seconds.*worker1-0.*node2"):
            run_job(JOB, backend, lambda line: heard.append(line.text), clock=steps_of(100.0))
        assert any("waiting until its last pods have ended" in text for text in heard)

    def test_the_wait_counts_for_no_budget_of_the_next_attempt(self, stuck: MemoryBackend) -> None:
        now = [0.0]
        watch = stuck.watch

        def slow(handle: JobHandle) -> Iterator[JobState | None]:
            if not stuck.jobs[NAME].is_deleting:
                yield from watch(handle)
                return
            yield stuck.jobs[NAME]
            now[0] += 1790
            stuck.vanish(NAME)
            yield None

        stuck.watch = slow
        create = stuck.create

        def starting(wanted: Job) -> JobHandle:
            handle = create(wanted)
            pods = stuck.jobs[NAME].pods
            stuck.change(NAME, pods=tuple(replace(pod, phase=Phase.PENDING) for pod in pods))
            threading.Timer(0.2, stuck.finish, [NAME, Phase.SUCCEEDED]).start()
            return handle

        stuck.create = starting
        assert isinstance(run_job(JOB, stuck, ignore, Budgets(start_seconds=60), clock=lambda: now[0]), JobState)


class TestCreateOrAttach:
    """Each row of the table in follow.py."""

    @staticmethod
    def existing(backend: MemoryBackend, of: Job = JOB, **changes: object) -> None:
        backend.create(of)
        backend.change(of.identity.name, **changes)

    def test_no_job(self) -> None:
        backend = MemoryBackend()
        assert create_or_attach(JOB, backend).name == NAME
        assert list(backend.jobs) == [NAME]

    def test_another_owner(self) -> None:
        backend = MemoryBackend()
        self.existing(backend, annotations={"kubetrain/run-id": "someone-else"})
        with pytest.raises(JobNotOurs, match="run someone-else"):
            create_or_attach(JOB, backend)
        assert backend.deleted == [], "never delete to make room"

    def test_another_spec(self) -> None:
        backend = MemoryBackend()
        self.existing(backend, job(script("changed"), script("worker")))
        with pytest.raises(JobNotOurs, match="with other settings"):
            create_or_attach(JOB, backend)

    def test_a_job_that_has_succeeded_is_announced_before_its_log(self) -> None:
        backend, lines = MemoryBackend(), list[LogLine]()
        self.existing(backend, phase=Phase.SUCCEEDED)
        create_or_attach(JOB, backend, lines.append)
        assert [line.text for line in lines] == [f"job {NAME} has already succeeded: its log follows"]

    def test_a_job_that_runs_is_followed_without_a_word(self) -> None:
        backend, lines = MemoryBackend(), list[LogLine]()
        self.existing(backend, phase=Phase.RUNNING)
        create_or_attach(JOB, backend, lines.append)
        assert lines == []

    @pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.PENDING, Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED])
    def test_ours(self, phase: Phase) -> None:
        backend = MemoryBackend()
        self.existing(backend, phase=phase)
        assert create_or_attach(JOB, backend) == backend.jobs[NAME].handle
        assert len(backend.jobs) == 1

    def test_ours_succeeded_gives_its_verdict_without_running_again(self) -> None:
        backend = MemoryBackend()
        backend.create(JOB)
        backend.finish(NAME, Phase.SUCCEEDED, last_words='{"status": "completed"}')
        assert run_job(JOB, backend, ignore).pods[0].last_words == '{"status": "completed"}'
        assert len(backend.jobs) == 1

    @staticmethod
    def judged_as_failed() -> MemoryBackend:
        backend = MemoryBackend()
        backend.create(JOB)
        backend.finish(NAME, Phase.FAILED, exit_code=1, finished=1.0)
        with pytest.raises(JobFailed):
            run_job(JOB, backend, ignore)
        return backend

    def test_ours_failed_is_reported_once_then_retried(self) -> None:
        backend = self.judged_as_failed()
        assert create_or_attach(JOB, backend).name == f"{NAME}-a2"
        backend.finish(f"{NAME}-a2", Phase.FAILED, exit_code=1, finished=1.0)
        with pytest.raises(JobFailed):
            run_job(JOB, backend, ignore)
        assert create_or_attach(JOB, backend).name == f"{NAME}-a3"

    def test_ours_failed_is_retried_with_a_corrected_spec(self) -> None:
        backend = self.judged_as_failed()
        corrected = replace(JOB, placement=Placement(image="corrected"))
        assert create_or_attach(corrected, backend).name == f"{NAME}-a2"

    def test_ours_being_deleted_is_waited_for(self) -> None:
        backend = MemoryBackend()
        self.existing(backend, is_deleting=True)
        old = backend.jobs[NAME].handle
        threading.Timer(0.2, backend.vanish, [NAME]).start()
        assert create_or_attach(JOB, backend) != old

    def test_a_faster_launcher_of_the_same_run_is_joined(self) -> None:
        backend = MemoryBackend()
        find = backend.find
        answers = iter([None])

        def too_early(wanted: Job) -> JobState | None:
            try:
                return next(answers)
            except StopIteration:
                return find(wanted)

        backend.create(JOB)
        backend.find = too_early
        assert create_or_attach(JOB, backend) == backend.jobs[NAME].handle


@pytest.mark.parametrize(
    ("pods", "options", "only"), [(32, {}, ""), (33, {}, "chief-0"), (33, {"follow_all": True}, "")]
)
def test_only_the_lead_of_a_large_job_is_followed_unless_all_are_asked_for(
    pods: int, options: dict[str, bool], only: str
) -> None:
    backend, large = MemoryBackend(), job(*[script("pass")] * pods)
    lines = [LogLine("chief-0", "shown"), LogLine("worker1-0", "not shown", is_hidden=True)]
    backend.lines = lines
    shown: list[LogLine] = []
    with running(backend, large, on_line=shown.append, **options) as outcome:
        backend.finish(large.identity.name, Phase.FAILED, exit_code=1, finished=1.0)
    assert isinstance(outcome[0], JobFailed)
    assert backend.only == only
    assert lines[0] in shown and lines[1] not in shown


def test_lines_that_were_not_shown_are_in_the_message_of_the_failure() -> None:
    backend, large = MemoryBackend(), job(*[script("pass")] * 33)
    backend.lines = [LogLine("worker7-0", "the last words", is_hidden=True)]
    with running(backend, large) as outcome:
        pods = [replace(pod, phase=Phase.FAILED) for pod in backend.jobs[large.identity.name].pods]
        pods[7] = replace(pods[7], exit_code=1, finished=1.0)
        backend.change(large.identity.name, phase=Phase.FAILED, pods=tuple(pods))
    (failure,) = outcome
    assert isinstance(failure, JobFailed)
    assert failure.log_tail == ("the last words",)
