"""A job's name, labels and spec hash, by which a restarted launcher finds it."""

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kubetrain_components.jobs.job import Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.local.operator import wants_restart
from kubetrain_components.jobs.placement import Placement
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import setting
from support.manifests import MOUNTS

IDENTITY = JobIdentity(
    pipeline="train-pytorch", stage="launch_training", run_id="3F2A9c1b-77aa-4b1c-9f00-123456789abc", dataset="d" * 16
)
JOB = Job(identity=IDENTITY, kind=JobKind.PYTORCH_JOB, replicas=(Replica(role="Master", count=1, command=("x",)),))


def test_the_name_comes_from_pipeline_stage_and_run() -> None:
    assert IDENTITY.name == "train-pytorch-launch-training-3f2a-c6cc42f7"
    assert IDENTITY.next_attempt().name == "train-pytorch-launch-training-3f2a-c6cc42f7-a2"


@pytest.mark.parametrize("pipeline", ["x", "Ünï / cödé", "a-very-long-pipeline-name-" * 5, "trailing-----------dash"])
@pytest.mark.parametrize("run_id", ["20261121-101500", "___", "a" * 80])
def test_every_pods_name_is_one_that_kubernetes_takes(pipeline: str, run_id: str) -> None:
    name = replace(IDENTITY, pipeline=pipeline, run_id=run_id, attempt=99).name
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert len(f"{name}-worker-9999") <= 63


def test_runs_stages_and_attempts_never_share_a_name() -> None:
    others = [
        replace(IDENTITY, stage="evaluate_model"),
        replace(IDENTITY, run_id=IDENTITY.run_id[:-1] + "d"),
        replace(IDENTITY, pipeline="train-tensorflow"),
        IDENTITY.next_attempt(),
    ]
    assert len({each.name for each in (IDENTITY, *others)}) == 5


def test_labels_are_the_run_and_slugs_and_annotations_have_the_full_values() -> None:
    assert JOB.labels == {
        "kubetrain/run-id": IDENTITY.run_id,
        "kubetrain/pipeline": "train-pytorch",
        "kubetrain/stage": "launch-training",
        "kubetrain/dataset": "d" * 16,
        "kubetrain/spec-hash": JOB.spec_hash,
    }
    assert IDENTITY.annotations()["kubetrain/run-id"] == IDENTITY.run_id
    assert re.fullmatch("[0-9a-f]{16}", JOB.spec_hash)


def test_no_two_runs_share_a_label() -> None:
    ids = ["exp_1", "exp-1", "EXP.1", "exp-1-", "a" * 63, "a" * 64, "a" * 65, "___", "."]
    labels = [replace(IDENTITY, run_id=run_id).labels("")["kubetrain/run-id"] for run_id in ids]
    assert len({*labels}) == len(ids)
    assert all(len(each) <= 63 and re.fullmatch("[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", each) for each in labels)
    assert labels[:3] == ids[:3], "a selector with the ID itself finds the run"


def test_a_label_that_is_cut_still_ends_as_labels_must() -> None:
    labels = replace(IDENTITY, dataset="d" * 62 + "/x").labels("0" * 16)
    assert labels["kubetrain/dataset"] == "d" * 62


def test_the_spec_hash_covers_what_runs_not_who_runs_it() -> None:
    assert replace(JOB, identity=IDENTITY.next_attempt()).spec_hash == JOB.spec_hash
    assert replace(JOB, identity=replace(IDENTITY, run_id="other")).spec_hash == JOB.spec_hash
    assert replace(JOB, processes_per_replica=2).spec_hash != JOB.spec_hash
    changed = (Replica(role="Master", count=1, command=("x",), env={"A": "1"}),)
    assert replace(JOB, replicas=changed).spec_hash != JOB.spec_hash
    retried = Placement(env={"MLFLOW_RUN_ID": "7"})
    assert replace(JOB, placement=retried).spec_hash == JOB.spec_hash
    assert replace(JOB, placement=Placement(env={"A": "1"})).spec_hash != JOB.spec_hash


@dataclass(frozen=True, kw_only=True)
class LaterPlacement(Placement):
    bandwidth: str = setting("", "a setting of a later release")


@dataclass(frozen=True, kw_only=True)
class LaterReplica(Replica):
    nice: int = 0


@dataclass(frozen=True, kw_only=True)
class LaterJob(Job):
    notes: tuple[str, ...] = ()


def later(**changes: Any) -> LaterJob:
    """The job that a later release makes of CPU_JOB."""
    replica = LaterReplica(role="Master", count=1, command=("x",), nice=changes.pop("nice", 0))
    placement = LaterPlacement(cpu="2", bandwidth=changes.pop("bandwidth", ""))
    return LaterJob(identity=IDENTITY, kind=JOB.kind, replicas=(replica,), placement=placement, **changes)


CPU_JOB = replace(JOB, placement=Placement(cpu="2"))


def test_settings_of_a_later_release_do_not_change_the_spec_hash_until_they_are_set() -> None:
    assert later().spec_hash == CPU_JOB.spec_hash != JOB.spec_hash
    changed = [later(bandwidth="1G"), later(nice=1), later(notes=("n",)), replace(CPU_JOB, mounts=MOUNTS)]
    assert len({CPU_JOB.spec_hash, *(each.spec_hash for each in changed)}) == 5


def test_a_role_without_pods_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="role Worker needs at least one replica"):
        replace(JOB, replicas=(Replica(role="Worker", count=0, command=("x",)),))


@pytest.mark.parametrize(
    ("policy", "restarts"),
    [
        (RestartPolicy.ALWAYS, {0: True, 1: True, 137: True}),
        (RestartPolicy.ON_FAILURE, {0: False, 1: True, 137: True}),
        (RestartPolicy.EXIT_CODE, {0: False, 1: False, 127: False, 128: True, 137: True}),
        (RestartPolicy.NEVER, {0: False, 1: False, 137: False}),
    ],
)
def test_restart_policies(policy: RestartPolicy, restarts: dict[int, bool]) -> None:
    assert {code: wants_restart(policy, code) for code in restarts} == restarts
