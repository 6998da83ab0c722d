"""The CronJob of deploy/reaper, with its own account and rights: it deletes the jobs of runs that are long over."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.manifests import job_manifest
from support.argo import make_workflow, serve_workflows
from support.cluster import COMPONENTS, FOREVER, as_account, await_that, pods_job

pytestmark = [pytest.mark.cluster, pytest.mark.core]

REAPER = Path(__file__).parents[2] / "deploy" / "reaper"
ADD_DELETE = (
    '[{"op": "add", "path": "/spec/jobTemplate/spec/template/spec/containers/0/command/-", "value": "--delete"}]'
)


class Jobs:
    """Of runs in every state, and one of none. None has pods: it would be as alive with them."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.made: dict[str, tuple[JobKind, str]] = {}

    def make(self, called: str, owner: dict[str, Any] | None, kind: JobKind = JobKind.TF_JOB) -> None:
        job = pods_job(FOREVER, run_id=called, kind=kind)
        manifest = job_manifest(job, owner)
        spec = manifest["spec"]
        spec.get("runPolicy", spec)["suspend"] = True
        self.api.create(self.api.path(*kind.traits.resource), manifest)
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
    for kind in JobKind:
        owner = make_workflow(api, f"over-{kind.lower()}", phase="Failed", finishedAt=hours_ago(25))
        made.make(owner["name"], owner, kind)
    made.make("young", make_workflow(api, "young", phase="Failed", finishedAt=hours_ago(23)))
    made.make("running", make_workflow(api, "running", phase="Running"))
    made.make("nobodys", None)
    return made


def hours_ago(hours: float) -> str:
    return f"{datetime.now(UTC) - timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"


def kubectl(*arguments: str) -> str:
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True).stdout


def apply_reaper(namespace: str, folder: Path) -> None:
    """As an administrator does."""
    shutil.copytree(REAPER, folder)
    kustomization = folder / "kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("namespace: kubetrain", f"namespace: {namespace}"))
    cron_job = folder / "cron_job.yaml"
    cron_job.write_text(cron_job.read_text().replace("kubetrain/components:0.1.0", COMPONENTS))
    kubectl("apply", "-k", str(folder))


def reap(api: KubernetesApi, name: str) -> set[str]:
    """What it says, having run once."""
    in_namespace = ("--namespace", api.namespace)
    kubectl("create", "job", name, "--from=cronjob/kubetrain-reaper", *in_namespace)
    await_that(lambda: (api.get(api.path("batch/v1", "jobs", name)) or {})["status"].get("succeeded"))
    return set(kubectl("logs", f"job/{name}", *in_namespace).splitlines())


def test_it_deletes_the_jobs_of_runs_that_are_long_over(jobs: Jobs, tmp_path: Path) -> None:
    apply_reaper(jobs.api.namespace, tmp_path / "reaper")
    everything = jobs.present()

    said = reap(jobs.api, "dry")
    assert len(said) == len(everything) == 6
    assert all(line.startswith("would ") for line in said)
    assert jobs.present() == everything

    kubectl("patch", "cronjob", "kubetrain-reaper", "--namespace", jobs.api.namespace, "--type=json", "-p", ADD_DELETE)
    names = {called: f"{kind.value} {name}" for called, (kind, name) in jobs.made.items()}
    assert reap(jobs.api, "earnest") == {
        *(f"delete {names[called]}: its run {called} ended 25.0 h ago: Failed" for called in names if "over" in called),
        f"keep {names['young']}: its run young ended 23.0 h ago, and may be retried",
        f"keep {names['running']}: its run running goes on",
        f"keep {names['nobodys']}: belongs to no run",
    }
    assert jobs.present() == {"young", "running", "nobodys"}


def test_the_job_of_a_run_that_is_gone_goes_without_it(jobs: Jobs) -> None:
    """Which is what the reaper says."""
    path = jobs.api.path("argoproj.io/v1alpha1", "workflows", "running")
    jobs.api.delete(path)
    await_that(lambda: "running" not in jobs.present())


def test_its_role_grants_nothing_else(namespace: str, tmp_path: Path) -> None:
    apply_reaper(namespace, tmp_path / "reaper")
    reaper = as_account("kubetrain-reaper", KubernetesApi.connect(namespace))
    for group_version, plural in (("v1", "pods"), ("v1", "secrets"), ("argoproj.io/v1alpha1", "workflows")):
        with pytest.raises(Exception, match=f"may not list {plural}"):
            reaper.get(reaper.path(group_version, plural))
