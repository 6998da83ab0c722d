"""The CronJob of deploy/reaper, with its own account and role, deletes the jobs of runs that ended long ago."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import COMMAND_KINDS, JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.companions import create_beside
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import (
    companion_manifest,
    companion_resource,
    job_manifest,
)
from kubetrain_components.jobs.kubernetes.served import is_served
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from support.argo import make_workflow, serve_workflows
from support.cluster import COMPONENTS, FOREVER, SMALL, as_account, await_that, pods_job
from support.following import training_job
from support.manifests import command

pytestmark = [pytest.mark.cluster, pytest.mark.core]

REAPER = Path(__file__).parents[2] / "deploy" / "reaper"
ADD_DELETE = (
    '[{"op": "add", "path": "/spec/jobTemplate/spec/template/spec/containers/0/command/-", "value": "--delete"}]'
)


class Jobs:
    """Jobs of runs in every state, and one without a run. They have no pods, which do not matter here."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.made: dict[str, tuple[JobKind, str]] = {}

    def make(self, called: str, owner: dict[str, Any] | None, kind: JobKind = JobKind.TF_JOB) -> None:
        job = made_by(kind, called)
        if (beside := companion_manifest(job, owner, "beside")) is not None:
            self.api.create(self.api.path(*companion_resource(kind)), beside)
        manifest = job_manifest(job, owner, "" if beside is None else "beside")
        spec = manifest["spec"]
        spec.get("runPolicy", spec)["suspend"] = True
        create_beside(self.api, self.api.path(*kind.traits.resource), manifest)
        self.made[called] = (kind, job.identity.name)

    def present(self) -> set[str]:
        return {called for called, (kind, name) in self.made.items() if self.api.get(self.path(kind, name))}

    def path(self, kind: JobKind, name: str) -> str:
        return self.api.path(*kind.traits.resource, name)


@pytest.fixture
def jobs(namespace: str) -> Jobs:
    api = KubernetesApi.connect(namespace)
    serve_workflows(api)
    made = Jobs(api)
    for kind in [kind for kind in JobKind if is_served(api, kind.traits.resource)]:
        owner = make_workflow(api, f"over-{kind.lower()}", phase="Failed", finishedAt=hours_ago(25))
        made.make(owner["name"], owner, kind)
    made.make("young", make_workflow(api, "young", phase="Failed", finishedAt=hours_ago(23)))
    made.make("running", make_workflow(api, "running", phase="Running"))
    made.make("without_run", None)
    return made


def made_by(kind: JobKind, called: str) -> Job:
    if kind is JobKind.TRAIN_JOB:
        return training_job(Launcher.TRAINER, FOREVER, called)
    if kind in COMMAND_KINDS:
        return command(kind.traits.framework, run_id=called, placement=Placement(**SMALL), mounts=())
    return pods_job(FOREVER, run_id=called, kind=kind)


def hours_ago(hours: float) -> str:
    return f"{datetime.now(UTC) - timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"


def kubectl(*arguments: str) -> str:
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True).stdout


def apply_reaper(namespace: str, folder: Path) -> None:
    """Apply the manifests like an administrator."""
    shutil.copytree(REAPER, folder)
    kustomization = folder / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("namespace: kubetrain", f"namespace: {namespace}"))
    cron_job = folder / "cron_job.yaml"
    cron_job.write_text(cron_job.read_text().replace("registry.invalid/kubetrain/components:0.1.0", COMPONENTS))
    kubectl("apply", "-k", str(folder))


def reap(api: KubernetesApi, name: str) -> set[str]:
    """Run the CronJob once and return the lines it prints."""
    in_namespace = ("--namespace", api.namespace)
    kubectl("create", "job", name, "--from=cronjob/kubetrain-reaper", *in_namespace)
    await_that(lambda: (api.get(api.path("batch/v1", "jobs", name)) or {})["status"].get("succeeded"))
    return set(kubectl("logs", f"job/{name}", *in_namespace).splitlines())


def test_it_deletes_the_jobs_of_runs_that_ended_long_ago(jobs: Jobs, tmp_path: Path) -> None:
    apply_reaper(jobs.api.namespace, tmp_path / "reaper")
    everything = jobs.present()

    lines = reap(jobs.api, "dry")
    assert len(lines) == len(everything) == len(jobs.made)
    assert all(line.startswith("would ") for line in lines)
    assert jobs.present() == everything

    kubectl("patch", "cronjob", "kubetrain-reaper", "--namespace", jobs.api.namespace, "--type=json", "-p", ADD_DELETE)
    names = {called: f"{kind.value} {name}" for called, (kind, name) in jobs.made.items()}
    assert reap(jobs.api, "delete") == {
        *(f"delete {names[called]}: its run {called} ended 25.0 h ago: Failed" for called in names if "over" in called),
        f"keep {names['young']}: its run young ended 23.0 h ago: Failed; it may be retried",
        f"keep {names['running']}: its run running is still active",
        f"keep {names['without_run']}: has no run",
    }
    assert jobs.present() == {"young", "running", "without_run"}


def test_the_cluster_deletes_the_job_of_a_deleted_run(jobs: Jobs) -> None:
    """The reaper relies on this."""
    path = jobs.api.path("argoproj.io/v1alpha1", "workflows", "running")
    jobs.api.delete(path)
    await_that(lambda: "running" not in jobs.present())


def test_its_role_grants_nothing_else(namespace: str, tmp_path: Path) -> None:
    apply_reaper(namespace, tmp_path / "reaper")
    reaper = as_account("kubetrain-reaper", KubernetesApi.connect(namespace))
    for group_version, plural in (("v1", "configmaps"), ("v1", "secrets"), ("argoproj.io/v1alpha1", "workflows")):
        with pytest.raises(Exception, match=f"may not list {plural}"):
            reaper.get(reaper.path(group_version, plural))
