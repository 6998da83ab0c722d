"""The local backend with real processes: the operator's environment, restarts, and no leftover processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kubetrain_components.jobs import budgets
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine, Phase
from kubetrain_components.jobs.local import operator as local_operator
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.jobs.verdict import JobFailed
from support.jobs import job, script

PRINT_ENVIRONMENT = script("import json, os; print(json.dumps(dict(os.environ)))")


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBackend]:
    monkeypatch.setattr(local_operator, "RESTART_DELAY_SECONDS", 0.1)
    with LocalBackend(tmp_path / "jobs") as backend:
        yield backend


def follow(backend: LocalBackend, wanted: Job) -> tuple[JobState | JobFailed, list[LogLine]]:
    lines: list[LogLine] = []
    try:
        return run_job(wanted, backend, lines.append), lines
    except JobFailed as error:
        return error, lines


def environments(lines: list[LogLine]) -> dict[str, dict[str, str]]:
    return {line.pod: json.loads(line.text) for line in lines if line.text.startswith("{")}


def test_pytorch_pods_get_the_operators_variables(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for left_over in ("RANK", "TF_CONFIG", "LOCAL_RANK", "PET_RDZV_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(left_over, "left over from the launcher's own environment")
    pods = Job(
        identity=JobIdentity(pipeline="p", stage="s", run_id="r"),
        kind=JobKind.PYTORCH_JOB,
        replicas=(
            Replica(role="Master", count=1, command=PRINT_ENVIRONMENT, env={"OWN": "kept"}),
            Replica(role="Worker", count=1, command=PRINT_ENVIRONMENT),
        ),
        processes_per_replica=2,
    )
    _, lines = follow(backend, pods)
    seen = environments(lines)
    master, worker = seen["master-0"], seen["worker-0"]
    assert (master["RANK"], worker["RANK"]) == ("0", "1")
    assert master["MASTER_ADDR"] == worker["PET_MASTER_ADDR"] == "127.0.0.1"
    assert master["MASTER_PORT"] == worker["PET_MASTER_PORT"]
    assert (master["PET_NNODES"], master["PET_NPROC_PER_NODE"], master["WORLD_SIZE"]) == ("2", "2", "4")
    assert master["OWN"] == "kept"
    assert not {"TF_CONFIG", "LOCAL_RANK", "PET_RDZV_ID", "TORCHELASTIC_RUN_ID"} & set(master)


def test_tensorflow_pods_get_a_tf_config_with_their_own_ports(backend: LocalBackend) -> None:
    _, lines = follow(backend, job(PRINT_ENVIRONMENT, PRINT_ENVIRONMENT))
    configs = {pod: json.loads(each["TF_CONFIG"]) for pod, each in environments(lines).items()}
    assert configs["chief-0"]["cluster"] == configs["worker1-0"]["cluster"]
    addresses = [address for role in configs["chief-0"]["cluster"].values() for address in role]
    assert len(set(addresses)) == 2
    assert configs["worker1-0"]["task"] == {"type": "worker1", "index": 0}


def test_a_failed_container_is_restarted_in_place(backend: LocalBackend, tmp_path: Path) -> None:
    flag = tmp_path / "tried"
    fails_once = script(
        f"import pathlib; flag = pathlib.Path({str(flag)!r}); print('try')\n"
        "if not flag.exists(): flag.touch(); raise SystemExit(1)"
    )
    state, lines = follow(backend, job(fails_once, backoff_limit=3))
    assert isinstance(state, JobState)
    assert state.pods[0].restarts == 1
    texts = [line.text for line in lines if line.pod == "chief-0"]
    # The state comes by another thread than the log, so that its notice may come after the next line.
    assert (texts[0], sorted(texts[1:])) == ("try", ["exited with code 1; restarting", "try"])


def test_the_backoff_limit_ends_the_restarts(backend: LocalBackend) -> None:
    error, lines = follow(backend, job(script("print('try'); raise SystemExit(4)"), backoff_limit=3))
    assert [line.text for line in lines].count("try") >= 3
    assert "chief-0 exited with code 4; no restarts are left" in str(error), "the one that is ended does not count"


def test_the_last_lines_of_a_failure_are_the_pods_own(backend: LocalBackend) -> None:
    error, _ = follow(backend, job(script("import sys; print('x' * 10**6); sys.exit('disk says no')")))
    assert isinstance(error, JobFailed)
    assert "disk says no" in error.log_tail
    assert not any("restarting" in line for line in error.log_tail)


@pytest.mark.parametrize(
    ("policy", "ending", "tries"),
    [
        (RestartPolicy.NEVER, "raise SystemExit(1)", 1),
        (RestartPolicy.EXIT_CODE, "raise SystemExit(1)", 1),
        (RestartPolicy.EXIT_CODE, "os.kill(os.getpid(), 9)", 2),
    ],
)
def test_the_restart_policy_is_honored(
    backend: LocalBackend, tmp_path: Path, policy: RestartPolicy, ending: str, tries: int
) -> None:
    flag = tmp_path / "tried"
    once = script(
        f"import os, pathlib; flag = pathlib.Path({str(flag)!r}); print('try')\n"
        f"if not flag.exists(): flag.touch(); {ending}"
    )
    state, lines = follow(backend, job(once, policy=policy, backoff_limit=9))
    assert [line.text for line in lines].count("try") == tries
    assert isinstance(state, JobState if tries == 2 else JobFailed)


def test_a_pod_that_waits_for_its_restart_ends_with_the_job(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_operator, "RESTART_DELAY_SECONDS", 600.0)
    killed = script("import os; os.kill(os.getpid(), 9)")
    waits, fails = killed, script("import time; time.sleep(1); raise SystemExit(1)")
    handle = backend.create(job(waits, fails, policy=RestartPolicy.EXIT_CODE))
    states = backend.watch(handle)
    while (state := next(states)) is not None and not state.is_over:
        pass
    assert state is not None
    assert [pod.phase for pod in state.pods] == [Phase.FAILED, Phase.FAILED]


def test_a_signal_is_reported_like_in_kubernetes(backend: LocalBackend) -> None:
    killed = script("import os; os.kill(os.getpid(), 9)")
    error, _ = follow(backend, job(killed, policy=RestartPolicy.NEVER))
    assert "was killed by SIGKILL (exit code 137)" in str(error)


def test_a_command_that_does_not_exist_fails_the_job(backend: LocalBackend) -> None:
    error, _ = follow(backend, job(("no-such-program",)))
    assert isinstance(error, JobFailed)
    assert any("cannot start no-such-program" in line for line in error.log_tail)


def test_last_words_come_from_the_newest_container(backend: LocalBackend, tmp_path: Path) -> None:
    flag = tmp_path / "tried"
    speaker = script(
        "import os, pathlib; words = pathlib.Path(os.environ['KUBETRAIN_TERMINATION_LOG'])\n"
        f"flag = pathlib.Path({str(flag)!r})\n"
        "if not flag.exists(): flag.touch(); words.write_text('first'); raise SystemExit(1)\n"
        "words.write_text(words.read_text() + 'second')"
    )
    state, _ = follow(backend, job(speaker, backoff_limit=3))
    assert isinstance(state, JobState)
    assert state.pods[0].last_words == "second"


def test_a_failed_pod_fails_the_job(backend: LocalBackend) -> None:
    late_failure = script("import time; time.sleep(0.5); raise SystemExit(7)")
    error, _ = follow(backend, job(script("pass"), late_failure, policy=RestartPolicy.NEVER))
    assert "worker1-0 exited with code 7" in str(error)


def test_processes_that_a_container_started_end_with_it(backend: LocalBackend, tmp_path: Path) -> None:
    """Like torchrun's workers, the child has its own session."""
    child_id = tmp_path / "child"
    parent = script(
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"pathlib.Path({str(child_id)!r}).write_text(str(child.pid))"
    )
    state, _ = follow(backend, job(parent))
    assert isinstance(state, JobState)
    assert not is_running(int(child_id.read_text()))


def test_a_launcher_in_another_process_attaches(backend: LocalBackend, tmp_path: Path) -> None:
    slow = job(script("import time; print('working'); time.sleep(2); print('done')"))
    backend.create(slow)
    with LocalBackend(tmp_path / "jobs") as other:  # knows only the folder, like another process
        state, lines = follow(other, slow)
    assert isinstance(state, JobState)
    assert [line.text for line in lines] == ["working", "done"]


LAUNCHER = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite may run under nohup
sys.path[:0] = {paths!r}
from pathlib import Path
from support.jobs import job, script
from kubetrain_components.jobs.local.backend import LocalBackend
stubborn = script("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)")
with LocalBackend(Path({directory!r})) as backend:
    handle = backend.create(job(stubborn, stubborn))
    for line in backend.logs(handle):
        print(line.text, flush=True)
"""


def test_no_process_outlives_its_launcher(tmp_path: Path) -> None:
    launchers = {end: start_launcher(tmp_path / end.name) for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)}
    for end, launcher in launchers.items():
        assert launcher.stdout is not None
        assert [launcher.stdout.readline().strip() for _ in range(2)] == ["up", "up"]
        assert len(processes_of(tmp_path / end.name)) == 2
    started = processes_of(tmp_path)
    for end, launcher in launchers.items():
        os.kill(launcher.pid, end)
    for launcher in launchers.values():
        launcher.wait()
    _, alive = psutil.wait_procs(started, timeout=60)
    assert [process for process in alive if is_running(process.pid)] == []
    for end in launchers:
        check_that_the_job_is_gone(tmp_path / end.name)


def start_launcher(directory: Path) -> "subprocess.Popen[str]":
    source = LAUNCHER.format(paths=sys.path, directory=str(directory))
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)


def processes_of(directory: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if is_of(process, directory)]


def check_that_the_job_is_gone(directory: Path) -> None:
    with LocalBackend(directory) as backend:
        wanted = job(script("print('again')"))
        assert backend.find(wanted) is None, "a job whose launcher is gone is gone"
        handle = backend.create(wanted)
        assert isinstance(handle, JobHandle)


def is_of(process: psutil.Process, directory: Path) -> bool:
    try:
        return str(directory) in process.environ().get("KUBETRAIN_TERMINATION_LOG", "")
    except psutil.Error:
        return False


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_rank_0_of_an_elastic_job_may_work_on_when_the_others_have_ended(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "ENDING_TIMEOUT_SECONDS", 0.5)
    alone = "import os, time; os.environ['PET_LOCAL_ADDR'] == '127.0.0.1' and (time.sleep(3), print('written'))"
    command, elastic = script(alone), Elastic(min_replicas=1, max_replicas=2)
    workers = Job(
        identity=JobIdentity(pipeline="p", stage="s", run_id="r"),
        kind=JobKind.PYTORCH_JOB,
        replicas=(Replica(role="Worker", count=2, command=command),),
        elastic=elastic,
    )
    state, lines = follow(backend, workers)
    assert isinstance(state, JobState), state
    assert [line.text for line in lines if line.pod == "worker-0"] == ["written"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte, which a pod fills."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def filling(folder: Path, then: str, first: str = "") -> tuple[str, ...]:
    return script(
        f"import pathlib, time\n{first}\n"
        f"with open({str(folder / 'filler')!r}, 'wb', buffering=0) as file:\n"
        "    try:\n        while file.write(bytes(4096)): pass\n    except OSError: pass\n"
        f"{then}"
    )


def test_a_full_disk_hides_no_end_of_a_job(full_disk: Path) -> None:
    with LocalBackend(full_disk / "jobs") as backend:
        failing = job(filling(full_disk, "raise SystemExit(7)"), policy=RestartPolicy.NEVER)
        error, _ = follow(backend, failing)
    assert f"no space is left on the disk of {full_disk}" in str(error)


def test_a_job_can_be_deleted_on_a_full_disk(full_disk: Path) -> None:
    with LocalBackend(full_disk / "jobs") as backend:
        handle = backend.create(
            job(filling(full_disk, f"pathlib.Path({str(full_disk.parent / 'full')!r}).touch()\ntime.sleep(600)"))
        )
        while not (full_disk.parent / "full").exists():
            time.sleep(0.05)
        began = time.monotonic()
        backend.delete(handle)
        assert backend.read(handle) is None
        assert time.monotonic() - began < 10


def test_deleting_terminates_before_it_kills(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    terminating = script(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *unused: (print('saving'), sys.exit(143)))\n"
        "print('up'); time.sleep(600)"
    )
    handle = backend.create(job(terminating))
    logs = backend.logs(handle)
    assert next(logs).text == "up"
    monkeypatch.setattr(local_operator, "GRACE_SECONDS", 120.0)
    began = time.monotonic()
    backend.delete(handle)
    assert time.monotonic() - began < 60, "a process that terminates ends the wait"
    assert backend.find(job(terminating)) is None


def test_a_finished_job_stays_on_record(backend: LocalBackend, tmp_path: Path) -> None:
    follow(backend, job(script("print('once')")))
    with LocalBackend(tmp_path / "jobs") as later:
        state, lines = follow(later, job(script("print('once')")))
        assert isinstance(state, JobState)
        assert state.phase is Phase.SUCCEEDED
        notice, *log = [line.text for line in lines]
        assert notice.endswith(" has already succeeded: its log follows")
        assert log == ["once"], "its log, not another run"
