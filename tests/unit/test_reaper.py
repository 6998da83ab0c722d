"""The reaper deletes only jobs of runs that ended long ago."""

from datetime import UTC, datetime, timedelta

import pytest

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.reaper import decide

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "w"}
DAY = timedelta(hours=24)


def job(owner: dict | None = OWNER, condition: str = "Running") -> dict:
    owners = {"ownerReferences": [owner]} if owner else {}
    conditions = [{"type": condition, "status": "True"}]
    return {"metadata": {"name": "j", "uid": "u", **owners}, "spec": {}, "status": {"conditions": conditions}}


def run(phase: str = "Failed", hours_ago: float = 30, uid: str = "w") -> dict:
    finished = (NOW - timedelta(hours=hours_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"phase": phase, **({"finishedAt": finished} if phase != "Running" else {})}
    return {"metadata": {"name": "run", "uid": uid}, "status": status}


@pytest.mark.parametrize(
    ("its_job", "its_run", "decision"),
    [
        (job(), run(), "delete PyTorchJob j: its run run ended 30.0 h ago: Failed"),
        (job(), run(hours_ago=2), "keep PyTorchJob j: its run run ended 2.0 h ago and may be retried"),
        (job(), run("Running"), "keep PyTorchJob j: its run run is still active"),
        (job(), run(uid="another"), "keep PyTorchJob j: its run run is gone, so the cluster will delete the job"),
        (job(owner=None), run(), "keep PyTorchJob j: has no run"),
        (job(condition="Succeeded"), run(), "keep PyTorchJob j: has ended"),
    ],
)
def test_a_job_is_deleted_only_if_its_run_ended_long_ago(its_job: dict, its_run: dict, decision: str) -> None:
    assert str(decide(JobKind.PYTORCH_JOB, its_job, its_run, DAY, NOW)) == decision
