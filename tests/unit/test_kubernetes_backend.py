"""One launcher's view of its job, which several threads share, and the requests with which it ends the job."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.annotations import FAILURE_ANNOTATION
from kubetrain_components.jobs.follow import create_or_attach, run_job
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, Phase
from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes import backend as kubernetes_backend
from kubetrain_components.jobs.kubernetes import background, watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.errors import Unreachable
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_trainer.errors import InvalidSetting
from support.api_server import PODS, ApiServer, Handler, answer
from support.manifests import batch, pytorch


def test_state_and_logs_share_one_watch_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = JobHandle(kind=JobKind.TF_JOB, name="j", uid="u")
    followed: list[object] = []
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        with KubernetesBackend.connect() as backend:
            together = threading.Barrier(16)

            def follow() -> None:
                together.wait()
                followed.append(backend._follow(handle))

            threads = [threading.Thread(target=follow) for _ in range(together.parties)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    assert len({id(each) for each in followed}) == 1


def test_a_running_job_is_followed_while_the_api_server_is_away_for_longer_than_a_launch_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)
    job = batch()
    path = f"/apis/batch/v1/namespaces/tests/jobs/{job.identity.name}"
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        with KubernetesBackend(KubernetesApi.connect(retry_seconds=0), job_retry_seconds=60) as backend:
            states = backend.watch(backend.create(job))
            assert next(states) is not None
            server.refuse()
            assert next(states) is not None
            complete = {"type": "Complete", "status": "True"}
            server.put(path, **server.objects[path], status={"conditions": [complete]})
            server.listen()
            assert any(state is not None and state.phase is Phase.SUCCEEDED for state in states)


def test_nothing_is_created_for_a_job_that_would_not_run_as_intended(
    server: ApiServer, backend: KubernetesBackend
) -> None:
    """A Service or a TrainingRuntime would otherwise come before the manifest of the job is checked."""
    unfit = batch(Placement(image="i", scheduler="volcano"), framework="pytorch")
    with pytest.raises(InvalidSetting, match="volcano"):
        backend.create(unfit)
    assert not any(request.startswith("POST") for request in server.requests)


@pytest.fixture
def backend(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesBackend]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.1)
    with KubernetesBackend(KubernetesApi.connect(), job_retry_seconds=60) as backend:
        yield backend


def test_the_time_before_the_first_state_counts_for_no_limit(backend: KubernetesBackend) -> None:
    states = backend.watch(backend.create(batch()))
    gaps = [state.is_after_gap for state in (next(states), next(states)) if state is not None]
    assert gaps == [True, False], "the API server may have been away since the job was created"


def test_an_interrupted_launcher_has_only_seconds_to_delete_its_job_whatever_its_threads_do(
    server: ApiServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_backend, "LAST_REQUESTS_SECONDS", 0.1)
    handle = backend.create(batch())
    backend.run_outlives_launcher()
    next(backend.watch(handle))  # like the thread that reads the logs and begins late
    server.fail("DELETE", answer(503, "etcdserver: leader changed"), times=5)
    with pytest.raises(Unreachable, match="DELETE"):
        backend.delete(handle)


def path_of(job: Job) -> str:
    return f"/apis/{job.kind.traits.api_version}/namespaces/tests/{job.kind.traits.resource[1]}/{job.identity.name}"


@contextmanager
def operator(server: ApiServer, job: Job, condition: str) -> Iterator[None]:
    """Be the training operator: report this condition of the job once its deadline is lowered."""

    def reconcile() -> None:
        with server.changed:
            server.changed.wait_for(lambda: is_over.is_set() or has_low_limits(), 10)
            if not is_over.is_set():
                status = {"conditions": [{"type": condition, "status": "True"}]}
                server.put(path_of(job), **server.objects[path_of(job)] | {"status": status})

    def has_low_limits() -> bool:
        spec: dict[str, Any] = server.objects[path_of(job)]["spec"]
        return bool(spec["runPolicy"].get("activeDeadlineSeconds") == 1)

    is_over = threading.Event()
    thread = threading.Thread(target=reconcile)
    thread.start()
    yield
    is_over.set()
    with server.changed:
        server.changed.notify_all()
    thread.join()


def test_a_training_that_the_launcher_ends_stays_as_a_failed_job_with_the_reason(
    server: ApiServer, backend: KubernetesBackend
) -> None:
    job = pytorch()
    handle = backend.create(job)
    with operator(server, job, "Failed"):
        backend.fail(handle, "worker-0: the dataset is empty")
    stays = server.objects[path_of(job)]
    assert stays["metadata"]["annotations"][FAILURE_ANNOTATION] == "worker-0: the dataset is empty"
    assert stays["spec"]["runPolicy"]["cleanPodPolicy"] == "Running", "the operator deletes its pods"
    assert create_or_attach(job, backend).name == job.identity.next_attempt().name, "the next start trains again"


@pytest.mark.parametrize("condition", ["Suspended", "Succeeded"])
def test_a_training_that_the_operator_does_not_fail_is_deleted(
    server: ApiServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    monkeypatch.setattr(kubernetes_backend, "FAIL_SECONDS", 0.1)
    job = pytorch()
    handle = backend.create(job)
    with operator(server, job, condition):
        backend.fail(handle, "cause")
    assert path_of(job) not in server.objects


def test_a_training_whose_operator_is_away_is_deleted(
    server: ApiServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_backend, "ANNOTATE_SECONDS", 0.1)
    handle = backend.create(pytorch())
    server.fail("PATCH", answer(500, "failed calling webhook"), times=5)
    backend.fail(handle, "cause")
    assert path_of(pytorch()) not in server.objects


def test_a_job_of_one_pod_is_deleted(server: ApiServer, backend: KubernetesBackend) -> None:
    handle = backend.create(batch())
    backend.fail(handle, "cause")
    assert not any(request.startswith("PATCH") for request in server.requests)
    assert path_of(batch()) not in server.objects


def put_pod(
    server: ApiServer, handle: JobHandle, phase: str, name: str = "its-pod", exit_code: int | None = None
) -> str:
    """Create a pod of a batch Job, whose main container may have exited before others, and return its path."""
    labels = {handle.kind.traits.job_name_label: handle.name, "kubetrain/role": "evaluation"}
    main = {"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": exit_code}}}
    server.put(
        f"{PODS}/{name}",
        metadata={"labels": labels, "ownerReferences": [{"uid": handle.uid}]},
        spec={"containers": [{"name": "main"}], "restartPolicy": "Never"},
        status={"phase": phase, "containerStatuses": [] if exit_code is None else [main]},
    )
    return f"{PODS}/{name}"


def test_pods_are_cleaned_by_a_launcher_that_has_not_seen_them_yet(
    server: ApiServer, backend: KubernetesBackend
) -> None:
    handle = backend.create(batch())
    running, ended = (put_pod(server, handle, phase, phase.lower()) for phase in ("Running", "Succeeded"))
    backend.clean(handle)
    assert (running in server.objects, ended in server.objects) == (False, True)


def test_the_pods_of_a_large_job_are_deleted_several_at_a_time(server: ApiServer, backend: KubernetesBackend) -> None:
    handle = backend.create(batch())
    for number in range(2 * background.THREADS):
        put_pod(server, handle, "Running", f"pod-{number}")
    together = threading.Barrier(background.THREADS)

    def await_others(handler: Handler) -> bool:
        together.wait(60)
        return False

    server.fail("DELETE", await_others, times=2 * background.THREADS)
    backend.clean(handle)
    assert not any(path.startswith(PODS) for path in server.objects)


@pytest.mark.parametrize("refusal", [403, 503])
@pytest.mark.parametrize(("condition", "exit_code"), [("Complete", 0), ("Failed", 1)])
def test_pods_that_cannot_be_deleted_change_no_verdict(
    server: ApiServer,
    backend: KubernetesBackend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusal: int,
    condition: str,
    exit_code: int,
) -> None:
    monkeypatch.setattr(kubernetes_backend, "CLEAN_SECONDS", 0.1)
    job = batch()
    handle = backend.create(job)
    pod = put_pod(server, handle, "Running", exit_code=exit_code)
    status = {"conditions": [{"type": condition, "status": "True"}]}
    server.put(path_of(job), **server.objects[path_of(job)], status=status)
    server.fail("DELETE", answer(refusal, "not now"), times=5)
    with pytest.raises(JobFailed, match="evaluation-0 exited with code 1") if exit_code else nullcontext():
        run_job(job, backend, lambda line: None)
    assert pod in server.objects
    assert pod in caplog.text and "not now" in caplog.text


def test_a_later_job_of_the_same_name_is_another_job(server: ApiServer, backend: KubernetesBackend) -> None:
    job = batch()
    first = backend.create(job)
    server.remove(path_of(job))
    second = backend.create(job)
    assert second.uid != first.uid
    backend.annotate(first, {"kubetrain/a": "1"})
    backend.delete(first)
    kept = server.objects[path_of(job)]["metadata"]
    assert kept["uid"] == second.uid
    assert "kubetrain/a" not in kept["annotations"]


def test_only_the_pod_that_was_seen_is_deleted(server: ApiServer, backend: KubernetesBackend) -> None:
    """The operator may have replaced it by one of the same name."""
    handle = backend.create(batch())

    def put() -> None:
        labels = {handle.kind.traits.job_name_label: handle.name}
        owned = {"labels": labels, "ownerReferences": [{"uid": handle.uid}]}
        server.put(f"{PODS}/one", metadata=owned, spec={"containers": []}, status={"phase": "Running"})

    def replaced(handler: Handler) -> bool:
        server.remove(f"{PODS}/one")
        put()
        return False

    put()
    server.fail("DELETE", replaced)
    backend.clean(handle)
    assert any(request.startswith(f"DELETE {PODS}/one") for request in server.requests)
    assert f"{PODS}/one" in server.objects
