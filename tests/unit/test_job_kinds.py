"""Each kind of job has a full row, an environment, a manifest, and the permissions that deploy/ grants."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import TRAINING_KINDS, TRAITS, JobKind, Traits
from kubetrain_components.jobs.kubernetes.manifests import job_manifest, replica_specs
from kubetrain_components.jobs.operator_environment import operator_environment
from kubetrain_trainer.frameworks import PACKAGES
from support.manifests import batch, pytorch, tensorflow

ROOT = Path(__file__).parents[2]
JOBS = {job.kind: job for job in (pytorch(), tensorflow(), batch())}
# A batch Job has one pod with any role, which the operator knows nothing of.
MAY_BE_EMPTY = {JobKind.BATCH_JOB: {"framework", "replica_specs", "port_name", "roles"}}
GRANTS = {
    "rbac/launch.yaml": {"create", "get", "list", "watch", "patch", "delete"},
    "reaper/account.yaml": {"list", "delete"},
}


def test_each_kind_has_a_row_and_an_example_here() -> None:
    assert set(JobKind) == set(TRAITS) == set(JOBS)


@pytest.mark.parametrize("kind", JobKind)
def test_each_row_is_full(kind: JobKind) -> None:
    values = {each.name: getattr(kind.traits, each.name) for each in fields(Traits)}
    assert {name for name, value in values.items() if value in ("", ())} == MAY_BE_EMPTY.get(kind, set())


def test_no_two_kinds_share_what_tells_them_apart() -> None:
    for values in ([kind.traits.resource for kind in JobKind], [kind.traits.replica_specs for kind in JobKind]):
        assert len(set(values)) == len(JobKind)


def test_each_framework_is_trained_by_one_kind() -> None:
    assert sorted(kind.traits.framework for kind in TRAINING_KINDS) == sorted(PACKAGES)


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.kind)
def test_each_kind_has_a_manifest_whose_pods_are_where_the_row_says(job: Job) -> None:
    manifest, traits = job_manifest(job), job.kind.traits
    assert (manifest["apiVersion"], manifest["kind"]) == (traits.api_version, job.kind)
    replicas = replica_specs(job.kind, manifest)
    assert set(replicas) == (set(job.roles) if traits.replica_specs else {"Pod"})
    containers = {each["template"]["spec"]["containers"][0]["name"] for each in replicas.values()}
    assert containers == {traits.container}


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.kind)
def test_each_kind_has_an_environment_where_the_operator_sets_one(job: Job) -> None:
    environment = operator_environment(job, job.lead_role, 0, lambda role, index: (role, index))
    assert bool(environment) is (job.kind in TRAINING_KINDS)


@pytest.mark.parametrize("file", GRANTS)
@pytest.mark.parametrize("kind", JobKind)
def test_deploy_grants_what_is_done_to_each_kind(kind: JobKind, file: str) -> None:
    documents = yaml.safe_load_all((ROOT / "deploy" / file).read_text())
    (role,) = (each for each in documents if each["kind"] == "Role")
    group = kind.traits.api_version.partition("/")[0]
    granted = {
        verb
        for rule in role["rules"]
        if group in rule["apiGroups"] and kind.traits.plural in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == GRANTS[file]
