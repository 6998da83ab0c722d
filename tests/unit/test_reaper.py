"""The reaper deletes only jobs of runs that ended long ago."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kubetrain_components.jobs.job import LEFT_ANNOTATION, VERDICT_ANNOTATION
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests import job_manifest
from kubetrain_components.jobs.kubernetes.reaper import Action, Found, decide, main
from support.api_server import ApiServer
from support.manifests import batch, pytorch

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "w"}
DAY = timedelta(hours=24)


def job(owner: dict | None = OWNER, condition: str = "Running", hours_ago: float = 2, **annotations: str) -> dict:
    owners = {"ownerReferences": [owner]} if owner else {}
    conditions = [{"type": condition, "status": "True", "lastTransitionTime": time_of(hours_ago)}]
    metadata = {"name": "j", "uid": "u", "annotations": annotations, **owners}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}


def left(hours_ago: float) -> dict:
    return job(None, **{LEFT_ANNOTATION: time_of(hours_ago)})


def time_of(hours_ago: float) -> str:
    return (NOW - timedelta(hours=hours_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def run(phase: str = "Failed", hours_ago: float = 30, uid: str = "w") -> dict:
    status = {"phase": phase, **({"finishedAt": time_of(hours_ago)} if phase != "Running" else {})}
    return {"metadata": {"name": "run", "uid": uid}, "status": status}


@pytest.mark.parametrize(
    ("its_job", "its_run", "decision"),
    [
        (job(), run(), "delete its run run ended 30.0 h ago: Failed"),
        (job(), run(hours_ago=2), "keep its run run ended 2.0 h ago: Failed; it may be retried"),
        (job(), run("Running"), "keep its run run is still active"),
        (job(), run(uid="another"), "keep its run run is gone, so the cluster will delete the job"),
        (job(owner=None), run(), "keep has no run"),
        (job(condition="Succeeded"), run(), "keep has ended"),
        (left(hours_ago=25), None, "delete its launcher left it 25.0 h ago"),
        (left(hours_ago=2), None, "keep its launcher left it 2.0 h ago; it may be retried"),
    ],
)
def test_a_job_is_deleted_only_if_its_run_ended_long_ago(its_job: dict, its_run: dict | None, decision: str) -> None:
    assert " ".join(decide(Found(JobKind.PYTORCH_JOB, its_job, its_run), DAY, NOW)) == decision


@pytest.mark.parametrize("left_at", ["yesterday", "2026-11-20T12:00:00"])
def test_a_job_whose_launcher_left_it_at_an_unreadable_time_is_kept(left_at: str) -> None:
    action, reason = decide(Found(JobKind.PYTORCH_JOB, job(None, **{LEFT_ANNOTATION: left_at})), DAY, NOW)
    assert action is Action.KEEP and f"{LEFT_ANNOTATION}={left_at}" in reason


@pytest.mark.parametrize(
    ("its_job", "pods", "decision"),
    [
        (job(condition="Failed", hours_ago=2), 3, "clean has ended 2.0 h ago, but 3 of its pods still run"),
        (job(None, "Succeeded", hours_ago=2), 1, "clean has ended 2.0 h ago, but 1 of its pods still run"),
        (job(condition="Failed", hours_ago=0.5), 3, "keep has ended 0.5 h ago, but 3 of its pods still run"),
        (job(condition="Failed", **{VERDICT_ANNOTATION: "failed"}), 3, "keep has ended"),
        (job(condition="Failed"), 0, "keep has ended"),
    ],
)
def test_pods_that_outlive_their_job_are_cleaned_unless_a_launcher_kept_them(
    its_job: dict, pods: int, decision: str
) -> None:
    assert " ".join(decide(Found(JobKind.PYTORCH_JOB, its_job, run(), [{}] * pods), DAY, NOW)) == decision


def test_all_active_jobs_of_runs_that_ended_long_ago_are_deleted_and_no_other_one(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = "/apis/{}/namespaces/tests/{}/{}"
    server.put(namespace.format("argoproj.io/v1alpha1", "workflows", "run"), uid="w", **run(hours_ago=10 * 365 * 24))
    paths = {}
    for each in (pytorch(), batch()):
        for name, owner in (("active", None), ("abandoned", OWNER)):
            paths[each.kind, name] = path = namespace.format(*each.kind.traits.resource, name)
            server.put(path, **job_manifest(each, owner))
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(sys, "argv", ["reaper", "--delete"])
    main()
    assert [name for (_, name), path in paths.items() if path in server.objects] == ["active", "active"]
    assert len(capsys.readouterr().out.splitlines()) == len(paths)
