"""Launchers in pods, as steps of a Workflow, with exactly the permissions in deploy/ or those of the stock account."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.served import is_served
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from support.argo import GROUP, make_workflow, serve_workflows
from support.cluster import COMPONENTS, IMAGE, as_account, await_that
from support.rights import grant_stock_account

pytestmark = pytest.mark.cluster

RIGHTS = Path(__file__).parents[2] / "deploy" / "rbac"
LAUNCH = f"""
import sys
from dataclasses import replace
from pathlib import Path
from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.settings.config import TrainConfig
launcher, seconds = sys.argv[1:]
command = ("python", "-u", "-c", "import sys, time; print('up'); time.sleep(float(sys.argv[1]))", seconds)
job = TrainingJob(
    framework="tensorflow", config=TrainConfig(), pipeline="p", run_id="r", workers=2, launcher=Launcher(launcher),
    data_dir=Path("/data"), output_dir=Path("/output"),
    placement=Placement(image="{IMAGE}", cpu="50m", memory="64Mi", shm_size="16Mi", grace_seconds=1),
).to_job()
job = replace(job, replicas=tuple(replace(each, command=command) for each in job.replicas))
with interrupted_by_sigterm(), KubernetesBackend.connect() as backend:
    run_job(job, backend, lambda line: print(line.pod, line.text, flush=True))
print("launched")
"""
CORE = pytest.mark.core


class Workflow:
    """A Workflow that Argo does not run: the test creates its pods."""

    def __init__(self, api: KubernetesApi, launcher: Launcher, account: str = "kubetrain-launcher") -> None:
        self.api, self.launcher, self.account = api, launcher, account
        self.owner = make_workflow(api, "run")

    def start_launcher(self, seconds: float) -> None:
        restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {
            "name": "main",
            "image": COMPONENTS,
            "command": ["python", "-u", "-c", LAUNCH, str(self.launcher), str(seconds)],
            "securityContext": restricted,
        }
        spec = {
            "serviceAccountName": self.account,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 10,
            "containers": [container],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
        metadata = {"name": "launcher", "ownerReferences": [self.owner]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.api.create(self.api.path("v1", "pods"), pod)

    def stop_launcher(self) -> None:
        """Delete the pod like a drain."""
        path = self.api.path("v1", "pods", "launcher")
        self.api.delete(path)
        await_that(lambda: self.api.get(path) is None)

    def terminate(self) -> None:
        """Terminate the run like Kubeflow Pipelines."""
        self.api.patch(self.api.path(GROUP, "workflows", "run"), {"spec": {"activeDeadlineSeconds": 0}})

    def job(self) -> dict[str, Any] | None:
        found = self.api.get(self.api.path(*self.launcher.kind("tensorflow").traits.resource))["items"]
        return found[0] if found else None

    def has_running_pods(self) -> bool:
        pods = self.api.get(self.api.path("v1", "pods"), labelSelector="kubetrain/stage=launch-training")["items"]
        return [pod["status"]["phase"] for pod in pods] == ["Running", "Running"]

    def log(self) -> str:
        with self.api.stream(self.api.path("v1", "pods", "launcher/log"), read_timeout=10) as stream:
            return b"".join(stream).decode()

    def await_success(self) -> None:
        await_that(lambda: self.phase() in ("Succeeded", "Failed"))
        assert self.log().splitlines()[-1] == "launched", self.log()

    def phase(self) -> str:
        return str(self.api.get(self.api.path("v1", "pods", "launcher"))["status"]["phase"])


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    made = KubernetesApi.connect(namespace)
    serve_workflows(made)
    return made


@pytest.fixture
def launcher(request: pytest.FixtureRequest, api: KubernetesApi) -> Launcher:
    wanted: Launcher = getattr(request, "param", Launcher.TRAINING_OPERATOR)
    if not is_served(api, wanted.kind("tensorflow").traits.resource):
        pytest.skip(f"the cluster has no {wanted.kind('tensorflow')}: ../shared/cluster/add trainer")
    return wanted


@pytest.fixture
def workflow(api: KubernetesApi, launcher: Launcher) -> Workflow:
    grant(api, "launch.yaml", "account.yaml")
    return Workflow(api, launcher)


def grant(api: KubernetesApi, *files: str) -> None:
    for manifest in (each for name in files for each in yaml.safe_load_all((RIGHTS / name).read_text())):
        for subject in manifest.get("subjects") or []:
            subject["namespace"] = api.namespace
        api.create(api.path(manifest["apiVersion"], f"{manifest['kind'].lower()}s"), manifest)


each_launcher = pytest.mark.parametrize("launcher", LAUNCHERS, indirect=True)


@CORE
@each_launcher
def test_a_launch_succeeds_with_exactly_the_permissions_of_the_role(workflow: Workflow) -> None:
    workflow.start_launcher(seconds=1)
    workflow.await_success()
    assert workflow.job()["metadata"]["ownerReferences"][0]["name"] == "run"


@CORE
@pytest.mark.parametrize("launcher", [Launcher.TRAINING_OPERATOR, Launcher.JOB], indirect=True)
def test_a_launch_succeeds_with_the_stock_accounts_permissions(api: KubernetesApi, launcher: Launcher) -> None:
    grant_stock_account(api)
    workflow = Workflow(api, launcher, "pipeline-runner")
    workflow.start_launcher(seconds=1)
    workflow.await_success()


@pytest.mark.parametrize("launcher", [pytest.param(LAUNCHERS[0], marks=CORE), *LAUNCHERS[1:]], indirect=True)
def test_a_drained_launcher_leaves_its_job_alone_and_finds_it_again(workflow: Workflow) -> None:
    workflow.start_launcher(seconds=15)
    await_that(workflow.has_running_pods)
    uid = workflow.job()["metadata"]["uid"]
    workflow.stop_launcher()
    left = workflow.job()["metadata"]
    assert left["uid"] == uid
    assert not left.get("ownerReferences"), "the deletion of the failed run's Workflow would delete the job"
    workflow.start_launcher(seconds=15)
    workflow.await_success()
    assert workflow.job()["metadata"]["uid"] == uid
    assert workflow.job()["metadata"]["ownerReferences"][0]["name"] == "run"


@CORE
@each_launcher
def test_terminating_a_run_deletes_its_job(workflow: Workflow) -> None:
    workflow.start_launcher(seconds=600)
    await_that(workflow.has_running_pods)
    workflow.terminate()
    began = time.monotonic()
    workflow.api.delete(workflow.api.path("v1", "pods", "launcher"))
    await_that(lambda: workflow.job() is None, seconds=5)
    print(f"gone after {time.monotonic() - began:.1f} s")


@CORE
def test_the_role_grants_nothing_else(workflow: Workflow) -> None:
    launcher = as_account("kubetrain-launcher", workflow.api)
    for path in ("secrets", "configmaps", "events"):
        with pytest.raises(Exception, match=f"may not list {path}"):
            launcher.get(launcher.path("v1", path))
