"""Jobs of other frameworks, run by `kubetrain train -- COMMAND` with real programs (programs/), on each launcher."""

import re
import signal
from collections.abc import Iterator

import pytest

from kubetrain_components.jobs.annotations import LABEL_PREFIX, VERDICT_ANNOTATION
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.served import is_served
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.settings.base import as_text
from support.cli import kubetrain, read_until, start
from support.cluster import await_that
from support.following import evict

pytestmark = pytest.mark.cluster

PROGRAMS = {
    "mpi": ("mpirun", "python", "/programs/allreduce.py"),
    "xgboost": ("python", "/programs/xgboost_train.py"),
    "jax": ("python", "/programs/jax_train.py"),
    "paddle": ("python", "-m", "paddle.distributed.launch", "/programs/paddle_train.py"),
}
OPERATOR, TRAINER, ALONE = Launcher.TRAINING_OPERATOR, Launcher.TRAINER, Launcher.JOB
ALL = [(framework, launcher) for framework in PROGRAMS for launcher in (OPERATOR, TRAINER, ALONE)]
HERE = [pair for pair in ALL if pair != ("mpi", ALONE)]
IN_CORE = {("mpi", OPERATOR), ("mpi", TRAINER), ("xgboost", OPERATOR), ("xgboost", ALONE)}
EACH = [pytest.param(*pair, marks=[pytest.mark.core] if pair in IN_CORE else []) for pair in HERE]
SMALL = {
    "cpu": "50m",
    "memory": "512Mi",
    "shm_size": "64Mi",
    "grace_seconds": "5",
}


@pytest.fixture
def place(namespace: str, api: KubernetesApi) -> Iterator[str]:
    """A namespace that admits the init container of MPIJobs, whose security context the operator does not set."""
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    yield namespace


def arguments(
    namespace: str, framework: str, launcher: Launcher, *faults: str, account: str = "", **more: str
) -> list[str]:
    pod = pod_patch({"serviceAccountName": account}, {"imagePullPolicy": "Never"})
    image = f"docker.io/kubetrain/test-{framework}:1"
    placement = {**SMALL, "launcher": launcher.value, "image": image, "pod": pod, **more}
    settings = [f"--set=pods.{name}={as_text(value)}" for name, value in placement.items()]
    options = ["--cluster", "--namespace", namespace, "--run-id", "r1"]
    return ["train", framework, *options, *settings, "--", *PROGRAMS[framework], *faults]


def jobs(api: KubernetesApi) -> list[Manifest]:
    ours = {"labelSelector": f"{LABEL_PREFIX}run-id=r1"}
    served = [kind.traits.resource for kind in JobKind if is_served(api, kind.traits.resource)]
    found = [api.get(api.path(*resource), **ours) or {} for resource in served]
    return [job for each in found for job in each.get("items") or []]


def pods(api: KubernetesApi) -> list[Manifest]:
    return (api.get(api.path("v1", "pods")) or {}).get("items") or []


@pytest.fixture(autouse=True)
def with_images(request: pytest.FixtureRequest) -> None:
    framework = request.node.callspec.params.get("framework", "mpi") if hasattr(request.node, "callspec") else "mpi"
    node = KubernetesApi.connect().get("/api/v1/nodes/node1") or {}
    names = [name for image in node["status"]["images"] for name in image.get("names") or []]
    if f"docker.io/kubetrain/test-{framework}:1" not in names:
        pytest.skip(f"the node has no image of the {framework} program: run tests/cluster/programs/prepare {framework}")


@pytest.mark.parametrize(("framework", "launcher"), EACH)
def test_all_ranks_of_a_program_meet(framework: str, launcher: Launcher, place: str, api: KubernetesApi) -> None:
    finished = kubetrain(*arguments(place, framework, launcher))
    assert finished.exit_code == 0, finished.output
    assert sorted(re.findall(r"rank (\d) of 2 on \S+: sum 3", finished.output)) == ["0", "1"]
    (job,) = jobs(api)
    assert job["metadata"]["annotations"][VERDICT_ANNOTATION] == "succeeded"
    await_that(lambda: all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods(api)))


@pytest.mark.core
def test_mpirun_reaches_the_workers_as_an_account_of_your_own(place: str, api: KubernetesApi) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "team"}}
    api.create(api.path("v1", "serviceaccounts"), account)
    finished = kubetrain(*arguments(place, "mpi", OPERATOR, account="team"))
    assert finished.exit_code == 0, finished.output
    assert finished.output.count("sum 3") == 2
    assert {pod["spec"]["serviceAccountName"] for pod in pods(api)} == {"team"}


@pytest.mark.parametrize(("framework", "launcher"), HERE)
def test_a_rank_that_fails_fails_the_job(framework: str, launcher: Launcher, place: str, api: KubernetesApi) -> None:
    finished = kubetrain(*arguments(place, framework, launcher, "FAIL=1", restart_policy="Never"))
    assert finished.exit_code == 1, finished.output
    assert "rank 1 fails on purpose" in finished.output
    assert re.search(r"error: launch_training failed: \S+-\d .*code", finished.output), finished.output
    (job,) = jobs(api)
    assert job["metadata"]["annotations"][VERDICT_ANNOTATION] == "failed"


@pytest.mark.parametrize(("framework", "launcher"), HERE)
def test_ctrl_c_deletes_the_job(framework: str, launcher: Launcher, place: str, api: KubernetesApi) -> None:
    process = start(*arguments(place, framework, launcher, "SLEEP=600"))
    await_that(lambda: pods(api) and all(pod["status"].get("phase") == "Running" for pod in pods(api)), 90)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    await_that(lambda: not jobs(api), 5)
    await_that(lambda: not pods(api))


@pytest.mark.parametrize("launcher", [OPERATOR, TRAINER])
def test_mpirun_starts_again_when_a_worker_was_evicted(launcher: Launcher, place: str, api: KubernetesApi) -> None:
    process = start(*arguments(place, "mpi", launcher, "SLEEP=20"))
    seen = read_until(process, "sum 3")
    (first, *_) = [pod for pod in pods(api) if pod["metadata"]["labels"][f"{LABEL_PREFIX}role"] == "worker"]
    evict(api, first)
    rest, _ = process.communicate(timeout=300)
    assert process.returncode == 0, seen + rest
    assert "sum 3" in rest


@pytest.mark.parametrize("launcher", [OPERATOR, TRAINER])
def test_a_launcher_that_was_killed_finds_the_job_again(launcher: Launcher, place: str, api: KubernetesApi) -> None:
    command = arguments(place, "mpi", launcher, "SLEEP=15")
    process = start(*command)
    read_until(process, "sum 3")
    process.kill()
    process.communicate()
    uids = [job["metadata"]["uid"] for job in jobs(api)]
    finished = kubetrain(*command)
    assert finished.exit_code == 0, finished.output
    assert [job["metadata"]["uid"] for job in jobs(api)] == uids


def test_an_mpi_job_in_a_restricted_namespace_says_why_it_has_no_launcher(namespace: str, api: KubernetesApi) -> None:
    """The operator adds an init container without a security context."""
    process = start(*arguments(namespace, "mpi", OPERATOR))
    seen = read_until(process, "violates PodSecurity")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert "kubectl-delivery" in seen
