"""The reaper deletes only jobs of runs that ended long ago."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kubetrain_components.jobs.annotations import LEFT_ANNOTATION, TTL_ANNOTATION, VERDICT_ANNOTATION
from kubetrain_components.jobs.job_kinds import REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL, JobKind
from kubetrain_components.jobs.kubernetes.errors import Forbidden
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import (
    companion_manifest,
    companion_resource,
    job_manifest,
)
from kubetrain_components.jobs.kubernetes.reaper import Action, Found, decide, main
from support.api_server import ApiServer, answer, not_served, stamp
from support.manifests import batch, indexed, pytorch, trainjob

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "w"}
DAY = timedelta(hours=24)


def job(owner: dict | None = OWNER, condition: str = "Running", hours_ago: float = 2, **annotations: str) -> dict:
    owners = {"ownerReferences": [owner]} if owner else {}
    conditions = [{"type": condition, "status": "True", "lastTransitionTime": time_of(hours_ago)}]
    metadata = {"name": "j", "uid": "u", "annotations": annotations, **owners}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}


def judged(verdict: str, hours_ago: float = 2) -> dict:
    """A job whose launcher was killed between its verdict and the deletion of the pods."""
    return job(condition=verdict.capitalize(), hours_ago=hours_ago, **{VERDICT_ANNOTATION: verdict})


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
        (judged("failed"), 3, "clean has ended 2.0 h ago, but 3 of its pods still run"),
        (judged("succeeded"), 1, "clean has ended 2.0 h ago, but 1 of its pods still run"),
        (judged("failed", hours_ago=0.5), 3, "keep has ended 0.5 h ago, but 3 of its pods still run"),
        (job(condition="Failed"), 0, "keep has ended"),
    ],
)
def test_pods_that_outlive_their_job_are_cleaned(its_job: dict, pods: int, decision: str) -> None:
    running = [pod(index) for index in range(pods)]
    assert " ".join(decide(Found(JobKind.PYTORCH_JOB, its_job, run(), running), DAY, NOW)) == decision


def pod(index: int = 0) -> dict:
    labels = {REPLICA_TYPE_LABEL: "worker", REPLICA_INDEX_LABEL: str(index)}
    owner = {"kind": "PyTorchJob", "name": "j", "uid": "u", "controller": True}
    metadata = {"name": f"p{index}", "uid": f"p{index}", "creationTimestamp": time_of(3), "labels": labels}
    spec = {"containers": [{"name": "pytorch"}], "nodeName": "n"}
    return {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": spec, "status": {"phase": "Running"}}


def test_pods_that_still_work_after_the_lead_has_succeeded_are_kept() -> None:
    ended = job(None, "Succeeded", hours_ago=2)
    assert decide(Found(JobKind.XGBOOST_JOB, ended, run(), [pod()]), DAY, NOW)[0] is Action.KEEP
    is_judged = judged("succeeded")
    assert decide(Found(JobKind.XGBOOST_JOB, is_judged, run(), [pod()]), DAY, NOW)[0] is Action.CLEAN
    failed = job(None, "Failed", hours_ago=2)
    assert decide(Found(JobKind.XGBOOST_JOB, failed, run(), [pod()]), DAY, NOW)[0] is Action.CLEAN


def test_rank_0_of_an_elastic_job_that_reports_success_is_kept() -> None:
    ended = {**job(None, "Succeeded", hours_ago=2), "spec": {"elasticPolicy": {}}}
    assert decide(Found(JobKind.PYTORCH_JOB, ended, run(), [pod(0), pod(1)]), DAY, NOW)[0] is Action.KEEP
    assert decide(Found(JobKind.PYTORCH_JOB, ended, run(), [pod(1)]), DAY, NOW)[0] is Action.CLEAN, "rank 0 has ended"


@pytest.mark.parametrize(
    ("its_job", "decision"),
    [
        (
            job(None, "Complete", hours_ago=25, **{TTL_ANNOTATION: "86400"}),
            "delete has ended 25.0 h ago and was kept for pods.ttl_seconds=86400",
        ),
        (
            job(None, "Failed", hours_ago=25, **{TTL_ANNOTATION: "86400", VERDICT_ANNOTATION: "failed"}),
            "delete has ended",
        ),
        (job(None, "Complete", hours_ago=23, **{TTL_ANNOTATION: "86400"}), "keep has ended"),
        (job(None, "Complete", hours_ago=25, **{TTL_ANNOTATION: "9" * 30}), "keep has ended"),
        (job(None, "Complete", hours_ago=25, **{TTL_ANNOTATION: "a day"}), "keep has ended"),
        (job(None, "Running", hours_ago=25, **{TTL_ANNOTATION: "86400"}), "keep has no run"),
        (job(None, "Complete", hours_ago=25), "keep has ended"),
    ],
)
def test_a_finished_job_is_deleted_after_its_time_to_live(its_job: dict, decision: str) -> None:
    assert " ".join(decide(Found(JobKind.TRAIN_JOB, its_job), DAY, NOW)).startswith(decision)


def test_a_finished_train_job_without_a_run_is_deleted(server: ApiServer, reap: Callable[[], list[str]]) -> None:
    paths = {}
    for name, hours_ago in (("old", 24 * 365 * 20), ("new", 0)):
        paths[name] = f"/apis/{TRAIN_JOBS}/namespaces/tests/trainjobs/{name}"
        ended_at = (datetime.now(UTC) - timedelta(hours=hours_ago)).isoformat()
        status = {"conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": ended_at}]}
        server.put(paths[name], **job_manifest(trainjob(), None), status=status)
    said = reap()
    assert [name for name, path in paths.items() if path in server.objects] == ["new"], said


@pytest.fixture
def reap(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], list[str]]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(sys, "argv", ["reaper", "--delete"])

    def reap() -> list[str]:
        main()
        return capsys.readouterr().out.splitlines()

    return reap


def test_all_active_jobs_of_runs_that_ended_long_ago_are_deleted_and_no_other_one(
    server: ApiServer, reap: Callable[[], list[str]]
) -> None:
    namespace = "/apis/{}/namespaces/tests/{}/{}"
    server.put(namespace.format("argoproj.io/v1alpha1", "workflows", "run"), uid="w", **run(hours_ago=10 * 365 * 24))
    paths = {}
    for each in (pytorch(), trainjob(), batch()):
        for name, owner in (("active", None), ("abandoned", OWNER)):
            paths[each.kind, name] = path = namespace.format(*each.kind.traits.resource, name)
            server.put(path, **job_manifest(each, owner))
    said = reap()
    assert [name for (_, name), path in paths.items() if path in server.objects] == ["active"] * 3
    assert len(said) == len(paths)


TRAIN_JOBS = "trainer.kubeflow.org/v1alpha1"


def test_kinds_that_the_cluster_does_not_have_are_passed_over(server: ApiServer, reap: Callable[[], list[str]]) -> None:
    for plural in ("trainjobs", "trainingruntimes"):
        refusal = f'User "reaper" cannot list resource "{plural}" in API group "trainer.kubeflow.org"'
        server.fail(f"{TRAIN_JOBS}/namespaces/tests/{plural}", answer(403, refusal))
    server.fail(f"GET /apis/{TRAIN_JOBS}", not_served, times=2)
    assert reap() == []


def test_a_deletion_that_is_refused_keeps_no_other_job(server: ApiServer, reap: Callable[[], list[str]]) -> None:
    long_ago = left(hours_ago=10 * 365 * 24)["metadata"]["annotations"]
    paths = [f"/apis/batch/v1/namespaces/tests/jobs/{name}" for name in ("held", "other")]
    for path in paths:
        made = job_manifest(batch(), None)
        server.put(path, **made | {"metadata": made["metadata"] | {"annotations": long_ago}})
    server.fail("DELETE " + paths[0], answer(403, 'admission webhook "policy" denied the request: held'))
    assert any(line.startswith("could not delete held") and "held" in line for line in reap())
    assert [path for path in paths if path in server.objects] == paths[:1]


def test_a_role_that_grants_no_jobs_at_all_is_an_error(server: ApiServer, reap: Callable[[], list[str]]) -> None:
    server.put("/apis/batch/v1", resources=[{"name": "jobs"}])
    server.fail("tests/jobs", answer(403, 'User "reaper" cannot list resource "jobs" in API group "batch"'))
    with pytest.raises(Forbidden, match="reaper may not list jobs"):
        reap()


@pytest.mark.parametrize("kind", [JobKind.TRAIN_JOB, JobKind.BATCH_JOB])
def test_what_a_killed_launcher_created_for_a_job_that_it_never_created_is_deleted(
    kind: JobKind, server: ApiServer, reap: Callable[[], list[str]]
) -> None:
    made = trainjob() if kind is JobKind.TRAIN_JOB else indexed()
    version, plural = companion_resource(kind)
    folder = f"/{'api' if version == 'v1' else 'apis'}/{version}/namespaces/tests/{plural}"
    job = "/apis/{}/namespaces/tests/{}/job".format(*kind.traits.resource)
    server.put(job, **job_manifest(made, None, "needed"))
    for name, owner, created in (
        ("leaked", None, stamp(0)),
        ("needed", None, stamp(0)),
        ("owned", OWNER, stamp(0)),
        ("young", None, datetime.now(UTC).isoformat()),
    ):
        companion = companion_manifest(made, owner, name)
        assert companion is not None
        metadata = {**companion["metadata"], "creationTimestamp": created}
        server.put(f"{folder}/{name}", **{**companion, "metadata": metadata})
    said = reap()
    assert f"delete {plural.removesuffix('s')} leaked: no job has or needs it" in said
    left = {path.rsplit("/", 1)[-1] for path in server.objects if path.startswith(folder)}
    assert left == {"needed", "owned", "young"}
