"""Each kind of job has a full row, an environment, a manifest, and the permissions that deploy/ grants."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import (
    COMMAND_FRAMEWORKS,
    COMMAND_KINDS,
    TRAINING_KINDS,
    TRAITS,
    JobKind,
    Traits,
)
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import (
    companion_manifest,
    companion_resource,
    job_manifest,
)
from kubetrain_components.jobs.kubernetes.manifests.pod_counts import replica_specs
from kubetrain_components.jobs.operator_environment import operator_environment
from kubetrain_trainer.frameworks import PACKAGES
from support.manifests import batch, command, pytorch, ray, tensorflow, trainjob

ROOT = Path(__file__).parents[2]
JOBS = {
    job.kind: job for job in (pytorch(), tensorflow(), trainjob(), batch(), ray(), *map(command, COMMAND_FRAMEWORKS))
}
# Their pods have one role, which Kubernetes knows nothing of, and train with any framework.
MAY_BE_EMPTY = {kind: {"framework", "replica_specs", "roles"} for kind in (JobKind.TRAIN_JOB, JobKind.BATCH_JOB)}
MAY_BE_EMPTY[JobKind.RAY_JOB] = {"framework"}
ALL = {"create", "get", "list", "watch", "patch", "delete"}


def test_each_kind_has_a_row_and_an_example_here() -> None:
    assert set(JobKind) == set(TRAITS) == set(JOBS)


@pytest.mark.parametrize("kind", JobKind)
def test_each_row_is_full(kind: JobKind) -> None:
    values = {each.name: getattr(kind.traits, each.name) for each in fields(Traits)}
    assert {name for name, value in values.items() if value in ("", ())} == MAY_BE_EMPTY.get(kind, set())


def test_no_two_kinds_share_what_tells_them_apart() -> None:
    assert len({kind.traits.resource for kind in JobKind}) == len(JobKind)
    fields_of_pods = [kind.traits.replica_specs for kind in TRAINING_KINDS]
    assert len(set(fields_of_pods)) == len(fields_of_pods)


def test_each_framework_is_trained_by_one_kind() -> None:
    assert sorted(kind.traits.framework for kind in TRAINING_KINDS) == sorted({*PACKAGES, *COMMAND_FRAMEWORKS})


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.kind)
def test_each_kind_has_a_manifest_whose_pods_are_where_the_row_says(job: Job) -> None:
    manifest, traits = job_manifest(job), job.kind.traits
    assert (manifest["apiVersion"], manifest["kind"]) == (traits.api_version, job.kind)
    replicas = replica_specs(job.kind, manifest)
    assert set(replicas) == (set(job.roles) if traits.replica_specs else {"Pod"})
    assert sum(each["replicas"] for each in replicas.values()) == job.total_replicas
    templates = [each.get("template") or template_beside(job) for each in replicas.values()]
    assert {each["spec"]["containers"][0]["name"] for each in templates} == {traits.container}


def template_beside(job: Job) -> Any:
    """Return the template in the runtime of a TrainJob."""
    runtime = companion_manifest(job, None, "0a")
    assert runtime is not None
    (nodes,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return nodes["template"]["spec"]["template"]


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.kind)
def test_each_kind_has_an_environment_where_the_operator_sets_one(job: Job) -> None:
    environment = operator_environment(job, job.lead_role, 0, lambda role, index: (role, index))
    assert bool(environment) is (job.kind in TRAINING_KINDS)


@pytest.mark.parametrize("kind", JobKind)
def test_deploy_grants_what_is_done_to_each_kind(kind: JobKind) -> None:
    assert granted("rbac/launch.yaml", *kind.traits.resource) == ({"list"} if kind in COMMAND_KINDS else ALL)
    assert granted("rbac/other_frameworks.yaml", *kind.traits.resource) == (ALL if kind in COMMAND_KINDS else set())
    assert granted("reaper/account.yaml", *kind.traits.resource) == {"list", "delete"}


@pytest.mark.parametrize("kind", [JobKind.TRAIN_JOB, JobKind.BATCH_JOB])
def test_deploy_grants_what_is_done_to_the_object_beside_a_job(kind: JobKind) -> None:
    assert granted("rbac/launch.yaml", *companion_resource(kind)) == {"create", "patch", "delete"}
    assert granted("reaper/account.yaml", *companion_resource(kind)) == {"list", "delete"}


def granted(file: str, api_version: str, plural: str) -> set[str]:
    documents = yaml.safe_load_all((ROOT / "deploy" / file).read_text())
    (role,) = (each for each in documents if each["kind"] == "Role")
    group = api_version.rpartition("/")[0]
    return {
        verb
        for rule in role["rules"]
        if group in rule["apiGroups"] and plural in rule["resources"]
        for verb in rule["verbs"]
    }
