"""A launch against an API server that fails in each of the ways that once cost a run: real threads, real requests."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs import following
from kubetrain_components.jobs.annotations import LEFT_ANNOTATION, PROGRESS_ANNOTATION, VERDICT_ANNOTATION
from kubetrain_components.jobs.follow import create_or_attach, run_job
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobState, LogLine
from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes import backend as kubernetes_backend
from kubetrain_components.jobs.kubernetes import watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.pod_checks import REQUIRED
from kubetrain_components.jobs.verdict import JobFailed
from support.api_server import PODS, ApiServer, Fault, Handler, Run, answer, cut, hang, lines_of, stamp
from support.manifests import batch
from support.stray_refusals import STRAY

pytestmark = pytest.mark.slow
JOBS = "/apis/batch/v1/namespaces/tests/jobs"
PLUGIN_API = "client.authentication.k8s.io/v1"
WEBHOOK = 'Internal error occurred: failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org"'
JOB = batch()
NAME = JOB.identity.name


class Launch:
    """A launcher of one batch Job, in a thread; the test is the cluster."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.lines: list[str] = []
        self.outcome: list[object] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.wait_for(lambda: self._path in server.objects)

    @property
    def _path(self) -> str:
        return f"{JOBS}/{NAME}"

    def _run(self) -> None:
        try:
            with KubernetesBackend.connect() as backend:
                self.outcome.append(run_job(JOB, backend, self._hear))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.outcome.append(error)

    def _hear(self, line: LogLine) -> None:
        self.lines.append(line.text)

    def wait_for(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def put_pod(self, phase: str) -> None:
        job = self.server.objects[self._path]
        metadata: dict[str, Any] = {
            "ownerReferences": [{"uid": job["metadata"]["uid"]}],
            "labels": {"kubetrain/role": "evaluation", "batch.kubernetes.io/job-name": NAME},
        }
        state = {"terminated": {"exitCode": 0}} if phase == "Succeeded" else {"running": {}}
        statuses = [{"name": "main", "restartCount": 0, "state": state}]
        spec = {"containers": [{"name": "main"}], "restartPolicy": "Never"}
        status = {"phase": phase, "containerStatuses": statuses}
        self.server.put(f"{PODS}/{NAME}-0", metadata=metadata, spec=spec, status=status)

    def start(self) -> Run:
        run = self.server.runs.setdefault(f"{NAME}-0", [Run()])[0]
        self.put_pod("Running")
        self.wait_for(
            lambda: len([each for each in self.server.requests if NAME in each and "watch=true" in each]) >= 2
        )
        return run

    def succeed(self) -> None:
        with self.server.changed:
            self.server.runs[f"{NAME}-0"][0].is_over = True
        self.put_pod("Succeeded")
        job = self.server.objects[self._path]
        self.server.put(self._path, **{**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})

    def fail(self) -> None:
        pod = self.server.objects[f"{PODS}/{NAME}-0"]
        statuses = [{"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 3}}}]
        self.server.put(f"{PODS}/{NAME}-0", **{**pod, "status": {"phase": "Failed", "containerStatuses": statuses}})
        job = self.server.objects[self._path]
        self.server.put(self._path, **{**job, "status": {"conditions": [{"type": "Failed", "status": "True"}]}})

    def result(self) -> object:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the launcher still follows the job"
        return self.outcome[0]


@pytest.fixture(autouse=True)
def quick(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(kubernetes_api, "MAX_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(kubernetes_backend, "ANNOTATE_SECONDS", 0.2)
    monkeypatch.setattr(kubernetes_backend, "JOB_RETRY_SECONDS", 20.0)  # or a test that fails lasts for an hour


@pytest.fixture
def many_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(kubernetes_backend, "LOG_POSITION_SECONDS", 0.0)


@pytest.fixture
def launch(server: ApiServer) -> Iterator[Launch]:
    launch = Launch(server)
    yield launch
    server.clear_faults()
    server.objects.pop(f"{JOBS}/{NAME}")  # ends the launch of a test that failed
    server.forget()
    launch.result()


def stream_of(line: bytes) -> Fault:
    def fault(handler: Handler) -> bool:
        handler.begin_stream()
        handler.send_chunk(line)
        handler.end_stream()
        return True

    return fault


@pytest.mark.parametrize("watch", [f"metadata.name%3D{NAME}&watch=true", f"job-name%3D{NAME}&watch=true"])
def test_a_web_page_in_a_watch_does_not_hide_the_jobs_success(server: ApiServer, launch: Launch, watch: str) -> None:
    launch.start()
    server.fail(watch, stream_of(b"<html>\n"), times=2)
    server.cut_all()
    launch.succeed()
    assert isinstance(launch.result(), JobState)


def test_a_machine_out_of_file_descriptors_for_a_moment_follows_the_job_to_its_end(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.start()
    exchange, errors = KubernetesApi._exchange, iter([OSError(24, "Too many open files")] * 4)

    def fail_first(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith("watch ") and (error := next(errors, None)) is not None:
            raise error
        return exchange(*arguments, **options)

    monkeypatch.setattr(KubernetesApi, "_exchange", fail_first)
    launch.server.cut_all()
    launch.succeed()
    assert isinstance(launch.result(), JobState)


def test_the_cause_of_a_failure_is_read_although_the_log_is_behind(
    server: ApiServer, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "DRAIN_SECONDS", 0.1)
    server.fail("follow=true", hang(60))
    run = launch.start()
    server.write(run, *lines_of(range(100)), f"{stamp(2)} RuntimeError: disk says no\n".encode())
    launch.fail()
    failure = launch.result()
    assert isinstance(failure, JobFailed)
    assert len(failure.log_tail) == 20 and failure.log_tail[-1] == "RuntimeError: disk says no"


def test_what_ends_a_watch_is_raised_to_the_launcher(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    launch.start()

    def leave(*unused: Any) -> None:
        raise SystemExit("a library ended the thread")

    monkeypatch.setattr(watched.Watched, "_watch", leave)
    launch.server.cut_all()
    assert "a library ended the thread" in str(launch.result())


@pytest.mark.parametrize(
    "fault", [answer(500, WEBHOOK), answer(403, 'admission webhook "policy" denied the request: no changes')]
)
def test_notes_that_the_server_rejects_decide_nothing(
    server: ApiServer, many_notes: None, launch: Launch, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail("PATCH", fault, times=10_000)
    run = launch.start()
    server.write(run, *(f"{stamp(number)} [kubetrain] step={number}/9 loss=0.5\n".encode() for number in range(9)))
    launch.wait_for(lambda: any("PATCH" in request for request in server.requests))
    launch.succeed()
    assert isinstance(launch.result(), JobState)
    assert len([each for each in launch.lines if "step=" in each]) == 9
    assert (
        len([each for each in caplog.records if "cannot annotate" in each.getMessage() and each.levelname == "WARNING"])
        == 1
    )


def test_a_note_that_takes_long_keeps_neither_the_log_nor_the_state_waiting(
    server: ApiServer, many_notes: None, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "READ_TIMEOUT_SECONDS", 600.0)
    monkeypatch.setattr(kubernetes_backend, "JOIN_SECONDS", 0.1)
    is_over = threading.Event()

    def hang(handler: Handler) -> bool:
        if VERDICT_ANNOTATION not in handler.body["metadata"]["annotations"]:
            is_over.wait(120)
        return False

    server.fail("PATCH", hang, times=100)
    run = launch.start()
    server.write(run, f"{stamp(0)} [kubetrain] step=1/9 loss=0.5\n".encode())
    launch.wait_for(lambda: any("PATCH" in request for request in server.requests))
    server.write(run, f"{stamp(1)} later\n".encode())
    launch.wait_for(lambda: "later" in launch.lines)
    launch.succeed()
    assert isinstance(launch.result(), JobState)
    annotations = metadata_of_job(server)["annotations"]
    assert VERDICT_ANNOTATION in annotations and PROGRESS_ANNOTATION not in annotations, "the note is still on its way"
    is_over.set()


@pytest.mark.parametrize("kind", ["jobs", "pods"])
def test_no_stray_refusal_ends_a_launch(server: ApiServer, launch: Launch, kind: str) -> None:
    launch.start()
    for fault in STRAY.values():
        server.fail(f"/{kind}?", fault, times=2)
    server.cut_all()
    launch.succeed()
    assert isinstance(launch.result(), JobState)


def test_a_launch_outlives_the_token_of_its_plugin(server: ApiServer, tmp_path: Path) -> None:
    """The plugin tells no expiry, so only a 401 shows that its token is no longer valid."""
    kubeconfig = server.kubeconfig(tmp_path)
    (tmp_path / "token").write_text("first")
    credential = f'{{"apiVersion": "{PLUGIN_API}", "kind": "ExecCredential", "status": {{"token": "%s"}}}}'
    script = f"printf '{credential}' $(cat {tmp_path}/token)"
    plugin = {"apiVersion": PLUGIN_API, "command": "sh", "args": ["-c", script], "interactiveMode": "Never"}
    config = json.loads(kubeconfig.read_text())
    kubeconfig.write_text(json.dumps({**config, "users": [{"name": "me", "user": {"exec": plugin}}]}))

    def reject_first(handler: Handler) -> bool:
        is_old = handler.headers["Authorization"] != "Bearer second"
        return is_old and answer(401, "Unauthorized")(handler)

    launch = Launch(server)
    launch.start()
    (tmp_path / "token").write_text("second")
    server.fail("", reject_first, times=10_000)
    server.cut_all()
    launch.succeed()
    assert isinstance(launch.result(), JobState)


def test_logs_that_may_not_be_read_are_a_warning(server: ApiServer, launch: Launch) -> None:
    denied = 'User "me" cannot get resource "pods/log" in API group "" in the namespace "tests"'
    server.fail("/log?", answer(403, denied), times=10_000)
    launch.start()
    launch.succeed()
    assert isinstance(launch.result(), JobState)
    assert any("warning" in line and "pods/log" in line for line in launch.lines)


def test_a_launcher_survives_that_nobody_reads_its_output() -> None:
    """`kubetrain train | head` closes stdout after ten lines."""
    program = (
        "from kubetrain_components.jobs.job_logs import print_line\n"
        "from kubetrain_components.jobs.job_state import LogLine\n"
        "for number in range(1000): print_line(LogLine('chief-0', 'x' * 1000))\n"
        "print('trained')"
    )
    launcher = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert launcher.stdout is not None and launcher.stderr is not None
    launcher.stdout.readline()
    launcher.stdout.close()
    noted = launcher.stderr.read().decode()
    launcher.stderr.close()
    assert (launcher.wait(20), noted.count("stdout is closed")) == (0, 1)
    assert "BrokenPipe" not in noted


def failed_with_verdict(server: ApiServer, job: Job) -> None:
    with KubernetesBackend.connect() as backend:
        handle = backend.create(job)
        backend.annotate(handle, {VERDICT_ANNOTATION: "failed"})
    path = f"{JOBS}/{handle.name}"
    server.put(path, **{**server.objects[path], "status": {"conditions": [{"type": "Failed", "status": "True"}]}})


def test_nodes_on_a_failed_attempt_are_avoided_by_all_later_ones(server: ApiServer) -> None:
    failed_with_verdict(server, replace(JOB, avoided_nodes=("node-1", "node-2")))
    for number in (2, 3):
        with KubernetesBackend.connect() as backend:
            handle = create_or_attach(JOB, backend)
            backend.annotate(handle, {VERDICT_ANNOTATION: "failed"})
        created = server.objects[path := f"{JOBS}/{attempt(number).identity.name}"]
        affinity = created["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity[REQUIRED]["nodeSelectorTerms"]
        assert [rule["values"] for rule in term["matchFields"]] == [["node-1"], ["node-2"]]
        server.put(path, **{**created, "status": {"conditions": [{"type": "Failed", "status": "True"}]}})


def attempt(number: int) -> Job:
    return replace(JOB, identity=replace(JOB.identity, attempt=number))


def test_the_newest_attempt_is_followed_although_the_first_is_gone(server: ApiServer) -> None:
    failed_with_verdict(server, JOB)
    with KubernetesBackend.connect() as backend:
        second = create_or_attach(JOB, backend)
        assert second.name == f"{NAME}-a2"
        server.remove(f"{JOBS}/{NAME}")
        assert create_or_attach(JOB, backend) == second
    assert [path for path in server.objects if path.startswith(JOBS)] == [f"{JOBS}/{NAME}-a2"]


def test_an_attempt_follows_the_newest_that_failed(server: ApiServer) -> None:
    for number in (1, 2, 9, 10):
        failed_with_verdict(server, attempt(number))
    for number in (1, 2, 9):
        server.remove(f"{JOBS}/{attempt(number).identity.name}")
    with KubernetesBackend.connect() as backend:
        assert create_or_attach(JOB, backend).name == f"{NAME}-a11"


def put_pod_of_earlier_job(server: ApiServer, name: str) -> None:
    server.put(f"{PODS}/{name}", metadata={"labels": JOB.labels}, status={"phase": "Running"})


def test_a_job_is_created_once_the_pods_of_an_earlier_one_have_ended(server: ApiServer) -> None:
    """A deleted job is gone before its pods, which save for as long as grace_seconds."""
    put_pod_of_earlier_job(server, "dying")
    said: list[str] = []
    left: list[bool] = []
    server.fail("POST", lambda handler: left.append(f"{PODS}/dying" in server.objects) or False)
    ending = threading.Timer(1, server.remove, [f"{PODS}/dying"])
    ending.start()
    with KubernetesBackend.connect() as backend:
        create_or_attach(JOB, backend, lambda line: said.append(line.text))
    ending.join()
    assert (left, said) == ([False], ["waiting until the pods dying of an earlier job of this run have ended"])


def test_pods_that_outlive_their_job_are_named(server: ApiServer) -> None:
    put_pod_of_earlier_job(server, "orphan")
    hasty = replace(JOB, placement=replace(JOB.placement, start_seconds=1))
    with KubernetesBackend.connect() as backend, pytest.raises(JobFailed, match="pods orphan of an earlier job"):
        create_or_attach(hasty, backend)
    assert f"{JOBS}/{NAME}" not in server.objects


def test_the_threads_of_an_earlier_attempt_end_when_the_next_one_is_followed(server: ApiServer) -> None:
    with KubernetesBackend.connect() as backend:
        for number in (1, 2, 3):
            assert next(backend.watch(backend.create(attempt(number)))) is not None
        end = time.monotonic() + 60
        while (threads := watch_threads()) != 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert threads == 2


def watch_threads() -> int:
    """Return the number of threads that watch jobs or pods."""
    names = [each.name for each in threading.enumerate()]
    return sum(name.startswith("watch ") and not name.endswith("/events") for name in names)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupting(then: Fault) -> Fault:
    def fault(handler: Handler) -> bool:
        interrupt()
        return then(handler)

    return fault


def as_usual(handler: Handler) -> bool:
    return False


def interrupted_run(server: ApiServer) -> list[str]:
    """Run the job in this thread, which gets the interrupts; return what it said."""
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupted_by_sigterm(), KubernetesBackend.connect() as backend:
        run_job(JOB, backend, lambda line: said.append(line.text))
    return said


def seconds_until_deleted(server: ApiServer, offset: float) -> float:
    """Send a SIGTERM this long after the creation of the job, and measure how late its deletion is requested."""
    moments: list[float] = []

    def note(handler: Handler) -> bool:
        moments.append(time.monotonic())
        return False

    def terminate() -> None:
        moments.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    def created(handler: Handler) -> bool:
        threading.Timer(offset, terminate).start()
        return False

    server.fail("POST", created)
    server.fail("DELETE", note)
    interrupted_run(server)
    return moments[1] - moments[0]


def test_sigterm_at_any_moment_deletes_the_job_at_once(server: ApiServer) -> None:
    """Argo kills a step 0.9 s after its SIGTERM."""
    seconds = sorted(seconds_until_deleted(server, random.uniform(0.05, 0.5)) for _ in range(20))
    assert seconds[-3] < 0.2 and seconds[-1] < 0.9, "the machine may be busy twice"


def test_a_second_ctrl_c_does_not_keep_the_job(server: ApiServer) -> None:
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    server.fail("DELETE", interrupting(answer(503, "etcdserver: leader changed")), times=2)
    said = interrupted_run(server)
    assert f"{JOBS}/{NAME}" not in server.objects
    assert said == [f"deleting Job {NAME}"]


RESTARTING = answer(503, "etcdserver: leader changed")


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_backend, "LAST_REQUESTS_SECONDS", 0.2)


def test_a_deletion_outlasts_the_restart_of_the_api_server(server: ApiServer, brief: None) -> None:
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    server.fail("DELETE", RESTARTING, times=20)
    said = interrupted_run(server)
    assert f"{JOBS}/{NAME}" not in server.objects
    assert NAME in said[1] and "leader changed" in said[1]
    assert said[2:] == ["trying again for 5 minutes: press Ctrl-C again to give up", "the job is deleted"]


def test_another_ctrl_c_gives_a_deletion_up(server: ApiServer, brief: None) -> None:
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    server.fail("DELETE", RESTARTING, times=20)
    server.fail("DELETE", interrupting(RESTARTING))
    server.fail("DELETE", RESTARTING, times=1000)
    assert "trying again" in interrupted_run(server)[-1]
    assert f"{JOBS}/{NAME}" in server.objects


def test_a_creation_whose_answer_is_lost_leaves_no_job(server: ApiServer, brief: None) -> None:
    def cut_off(handler: Handler) -> bool:
        server.fail("GET " + JOBS, RESTARTING, times=20)
        return cut(0)(handler)

    server.fail("POST", interrupting(cut_off))
    said = interrupted_run(server)
    assert f"{JOBS}/{NAME}" not in server.objects
    assert f"could not delete Job {NAME}" in said[0]


def test_ctrl_c_is_heard_while_a_webhook_hangs(server: ApiServer) -> None:
    def hang_long(handler: Handler) -> bool:
        threading.Timer(1, interrupt).start()
        return hang(30)(handler)

    server.fail("POST", hang_long)
    began = time.monotonic()
    interrupted_run(server)
    assert time.monotonic() - began < 5


def test_ctrl_c_while_a_job_is_created_leaves_none(server: ApiServer) -> None:
    server.fail("POST", interrupting(as_usual))
    interrupted_run(server)
    assert any(request.startswith("POST") for request in server.requests)
    assert f"{JOBS}/{NAME}" not in server.objects


def test_ctrl_c_is_heard_between_two_tries_of_a_creation(server: ApiServer) -> None:
    server.fail("POST", interrupting(answer(500, WEBHOOK)))
    server.fail("POST", answer(500, WEBHOOK), times=1000)
    interrupted_run(server)
    assert sum(request.startswith("POST") for request in server.requests) == 1
    assert f"{JOBS}/{NAME}" not in server.objects


@pytest.mark.parametrize("moment", ["GET " + JOBS + "?labelSelector", f"GET {JOBS}/{NAME}"])
def test_ctrl_c_while_the_launcher_looks_for_its_running_job_deletes_it(server: ApiServer, moment: str) -> None:
    with KubernetesBackend.connect() as backend:
        backend.create(JOB)
    server.fail(moment, interrupting(as_usual))
    interrupted_run(server)
    assert f"{JOBS}/{NAME}" not in server.objects


def test_ctrl_c_leaves_a_job_of_another_launch_alone(server: ApiServer) -> None:
    with KubernetesBackend.connect() as backend:
        backend.create(replace(JOB, backoff_limit=JOB.backoff_limit + 1))
    server.fail(f"GET {JOBS}/{NAME}", interrupting(as_usual))
    interrupted_run(server)
    assert f"{JOBS}/{NAME}" in server.objects


RUN = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "w"}


@pytest.fixture
def step(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a step of a run that continues."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KFP_POD_NAME", "launcher")
    server.put(f"{PODS}/launcher", metadata={"ownerReferences": [RUN]})
    server.put("/apis/argoproj.io/v1alpha1/namespaces/tests/workflows/run", uid="w", kind="Workflow", spec={})


def metadata_of_job(server: ApiServer) -> dict[str, Any]:
    return dict(server.objects[f"{JOBS}/{NAME}"]["metadata"])


def test_a_drained_launcher_releases_its_job_from_the_run_and_the_next_one_adopts_it(
    server: ApiServer, step: None
) -> None:
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    interrupted_run(server)
    left = metadata_of_job(server)
    assert left["ownerReferences"] == [] and LEFT_ANNOTATION in left["annotations"]
    with KubernetesBackend.connect() as backend:
        create_or_attach(JOB, backend)
    adopted = metadata_of_job(server)
    assert adopted["uid"] == left["uid"]
    assert adopted["ownerReferences"] == [RUN] and LEFT_ANNOTATION not in adopted["annotations"]


def test_a_drained_launcher_retries_to_release_its_job(server: ApiServer, step: None) -> None:
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    server.fail("PATCH", answer(503, "no leader", Retry_After="1"))  # longer than ANNOTATE_SECONDS
    interrupted_run(server)
    assert metadata_of_job(server)["ownerReferences"] == []


def test_a_drained_launcher_that_cannot_release_its_job_tells_when_it_ends(
    server: ApiServer, step: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kubernetes_backend, "LEAVE_SECONDS", 0.1)
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    server.fail("PATCH", answer(500, WEBHOOK), times=1000)
    interrupted_run(server)
    assert metadata_of_job(server)["ownerReferences"] == [RUN]
    assert "still belongs to its run and ends with it about an hour later: retry the run" in caplog.text


def test_an_adoption_that_the_server_rejects_is_repeated_with_the_next_note(server: ApiServer, step: None) -> None:
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    interrupted_run(server)
    with KubernetesBackend.connect() as backend:
        server.fail("PATCH", answer(500, WEBHOOK), times=1000)
        handle = create_or_attach(JOB, backend)
        assert metadata_of_job(server)["ownerReferences"] == []
        server.clear_faults()
        assert backend.annotate(handle, {"kubetrain/progress": "step 3"})
    adopted = metadata_of_job(server)
    assert adopted["ownerReferences"] == [RUN] and LEFT_ANNOTATION not in adopted["annotations"]


def test_a_terminated_run_deletes_its_job(server: ApiServer, step: None) -> None:
    workflow = "/apis/argoproj.io/v1alpha1/namespaces/tests/workflows/run"
    server.put(workflow, kind="Workflow", spec={"activeDeadlineSeconds": 0})
    server.fail(f"{NAME}&watch=true", interrupting(as_usual))
    interrupted_run(server)
    assert f"{JOBS}/{NAME}" not in server.objects
