"""An elastic job whose pods meet in etcd continues without its first pod; one with c10d cannot."""

from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.budgets import Budgets, BudgetTracker
from kubetrain_components.jobs.job import Elastic, Job
from kubetrain_components.jobs.job_kinds import INDEX_LABEL, REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL, JobKind
from kubetrain_components.jobs.job_logs import JobLogs
from kubetrain_components.jobs.job_state import JobState, LogLine
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_components.jobs.restarts import RestartCounter
from kubetrain_components.manifest import Manifest
from support.manifests import PLAIN, elastic

KINDS: dict[JobKind, dict[str, Any]] = {
    JobKind.PYTORCH_JOB: {},
    JobKind.TRAIN_JOB: {"kind": JobKind.TRAIN_JOB, "framework": "pytorch"},
    JobKind.BATCH_JOB: {"kind": JobKind.BATCH_JOB, "framework": "pytorch"},
}
INSTANCE = "0" * 8
BUDGETS = Budgets(start_seconds=1800, run_seconds=10_000)


def job_of(kind: JobKind, backend: str) -> Job:
    job = elastic(replace(PLAIN, rendezvous={"backend": backend}), **KINDS[kind])
    return replace(job, elastic=Elastic(min_replicas=2, max_replicas=4))


def pod(index: int, number: int, phase: str, restarts: int = 0, *, is_taken: bool = False) -> Manifest:
    taken = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]}
    statuses = [
        {"name": name, "restartCount": restarts, "state": {}} for name in ("pytorch", "node", "main") if restarts
    ]
    return {
        "metadata": {
            "name": f"pod-{index}",
            "uid": f"pod-{index}-{number}",
            "creationTimestamp": f"2026-11-22T00:0{number}:00Z",
            "labels": {
                **{REPLICA_TYPE_LABEL: "worker", REPLICA_INDEX_LABEL: str(index)},
                **{"kubetrain/role": "worker", "kubetrain/instance": INSTANCE},
            },
            "annotations": {INDEX_LABEL: str(index)},
            "ownerReferences": [{"uid": "job"}],
        },
        "spec": {"restartPolicy": "OnFailure", "containers": [{"name": "pytorch"}]},
        "status": {"phase": phase, "containerStatuses": statuses, **(taken if is_taken else {})},
        **({"deleted": True} if is_taken else {}),
    }


def without_first(job: Job, restarts: int = 0) -> JobState:
    """Return the state as a launcher derives it that knows nothing but the objects of the cluster."""
    made = manifests_of(job)[-1]
    made["metadata"]["uid"] = "job"
    made["status"] = {"active": 3, "conditions": [{"type": "Running", "status": "True"}]}
    lost = [pod(0, 1, "Failed", is_taken=True), pod(0, 2, "Pending")]
    return job_state(job.kind, made, [*lost, *(pod(index, 1, "Running", restarts) for index in (1, 2, 3))])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["etcd-v2", "c10d"])
def test_a_training_runs_without_its_first_pod_if_the_others_meet_in_etcd(kind: JobKind, backend: str) -> None:
    now = 0.0
    tracker, state = BudgetTracker(BUDGETS, lambda: now), without_first(job_of(kind, backend))
    assert {each.name: each.is_lost for each in state.pods}["worker-0"]
    assert tracker.exceeded(state) is None
    now = 5000.0
    failure = tracker.exceeded(state)
    if backend == "c10d":
        assert failure is not None and "starting for 5000 s" in failure.reason
    else:
        assert (failure, tracker.seconds_running, state.late_pods) == (None, 5000.0, {"worker-0"})


@pytest.mark.parametrize(("backend", "counted"), [("etcd-v2", 3 * 20 - 4), ("c10d", 0)])
def test_the_restarts_of_those_that_run_without_it_count(backend: str, counted: int) -> None:
    counter, job = RestartCounter(lambda: 0.0), job_of(JobKind.PYTORCH_JOB, backend)
    seen = [counter.count(without_first(job, restarts), "") for restarts in range(21)]
    assert seen[-1] == counted


@pytest.mark.parametrize("kind", KINDS)
def test_the_scheduler_replaces_other_pods_while_the_first_is_away(kind: JobKind) -> None:
    def affinities(backend: str) -> bool:
        return "podAffinity" in str(manifests_of(job_of(kind, backend)))

    assert (affinities("etcd-v2"), affinities("c10d")) == (False, True)


@pytest.mark.parametrize("lead_changes", [True, False])
def test_the_progress_of_the_pod_that_has_rank_0_meanwhile_is_known(*, lead_changes: bool) -> None:
    lines = [LogLine("worker-0", "[kubetrain] step=5/90 loss=1"), LogLine("worker-1", "[kubetrain] step=7/90 loss=1")]
    logs = JobLogs(iter(lines), lambda line: None, lambda line: None, "worker-0", lead_changes=lead_changes)
    logs.drain(60)
    assert logs.progress == lines[lead_changes].text
