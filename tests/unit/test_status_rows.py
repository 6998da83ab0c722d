"""The lines of `kubetrain status`, from snapshots: at most 80 columns wide, and what is unknown is called so."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.annotations import FAILED, FAILURE_ANNOTATION, SUCCEEDED, VERDICT_ANNOTATION
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import RunState, StageState
from kubetrain_pipelines.status.rows import MAX_PODS, WIDTH, rows_of, wrapped
from kubetrain_pipelines.status.snapshot import JobSnapshot, Progress, Snapshot, lead_of

RECORDED = Path(__file__).parent / "recorded"
NOW = 1_800_000_000.0
LONG_NODE = "ip-10-0-12-34.eu-central-1.compute.internal"
VALUES: Mapping[str, Any] = {
    "step": "100/300",
    "loss": 0.02591,
    "samples_per_second": 4127.2,
    "data_wait_share": 0.03,
    "seconds_left": 130.0,
    "checkpoint_age_seconds": 31.0,
}


def recorded(name: str) -> JobState:
    content = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
    job = content["job"]
    return job_state(JobKind(job["kind"]), job, content.get("pods") or [], content.get("events") or [])


def training(*pods: PodState, **fields: Any) -> JobState:
    handle = JobHandle(kind=JobKind.PYTORCH_JOB, name="train-1", uid="u")
    return JobState(handle=handle, phase=Phase.RUNNING, pods=pods, **fields)


def pod(index: int, phase: Phase = Phase.RUNNING, **fields: Any) -> PodState:
    return PodState(role="Worker" if index else "Master", index=index, phase=phase, **fields)


def lines(*jobs: JobSnapshot, **fields: Any) -> list[str]:
    return wrapped(rows_of(Snapshot(jobs=jobs, **fields), NOW))


def job(state: JobState, **fields: Any) -> JobSnapshot:
    return JobSnapshot(name="train-1", state=state, **fields)


def progress(reported: float | None = NOW - 5, **values: Any) -> Progress:
    return Progress(values={**VALUES, **values}, reported=reported)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.yaml")))
def test_no_state_that_was_recorded_takes_more_than_80_columns(name: str) -> None:
    state = recorded(name)
    nodes = {each.name: LONG_NODE for each in state.pods}
    shown = lines(JobSnapshot(name=state.handle.name, state=state, nodes=nodes, progress=progress()))
    assert shown[0].startswith(f"job {state.handle.name} ({state.handle.kind}): ")
    assert [line for line in shown if len(line) > WIDTH] == []


def test_a_pod_that_no_node_has_room_for_is_named_with_the_reason() -> None:
    shown = " ".join(" ".join(lines(job(recorded("unschedulable")))).split())
    assert "Pending - waiting" in shown
    assert "cannot be scheduled (0/1 nodes are available:" in shown
    assert "request less, or change nodeSelector" in shown


def test_a_training_shows_its_pods_and_its_progress() -> None:
    state = training(pod(0), pod(1, restarts=2))
    nodes = {"master-0": LONG_NODE, "worker-1": "n-2"}
    assert lines(job(state, nodes=nodes, progress=progress())) == [
        "job train-1 (PyTorchJob): Running",
        f"  master-0   Running  {LONG_NODE}",
        "  worker-1   Running  n-2  2 restarts",
        "  progress   step 100/300 · loss 0.0259 · 4127 samples/s · data wait 3% ·",
        "             time left 2 min 10 s · unsaved 36 s",
    ]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, "  progress   not reported so far"),
        (Progress(values={"step": 7.0}, reported=NOW), "data wait unknown · time left unknown · unsaved unknown"),
        (progress(reported=None), "data wait 3% · time left 2 min 10 s · unsaved unknown"),
        (progress(reported=NOW - 200), "time left 2 min 10 s · unsaved 3 min 51 s · reported 3 min 20 s ago"),
        (progress(reported=NOW + 60), "unsaved 31 s"),  # the clock of the node is ahead
        (Progress(values={"objects": "7/9"}, reported=NOW), "  progress   objects 7/9"),
    ],
)
def test_what_is_unknown_about_the_progress_is_called_so(shown: Progress | None, expected: str) -> None:
    text = lines(job(training(pod(0)), progress=shown))[2:]
    assert " ".join(" ".join(text).split()).endswith(" ".join(expected.split()))


def test_a_job_that_has_ended_shows_its_cause_instead_of_its_progress() -> None:
    crashed = pod(1, Phase.FAILED, exit_code=3, finished=NOW)
    state = replace(training(pod(0, Phase.FAILED, exit_code=1, finished=NOW + 9), crashed), phase=Phase.FAILED)
    shown = lines(job(state, progress=progress()))
    assert shown[2:] == ["  worker-1   Failed  -  exit code 3", "  cause      worker-1 exited with code 3"]


def test_the_verdict_of_the_launcher_counts_more_than_the_phase() -> None:
    annotations = {VERDICT_ANNOTATION: FAILED, FAILURE_ANNOTATION: "worker-1 hangs"}
    failed = job(training(pod(0), annotations=annotations))
    assert lines(failed)[0] == "job train-1 (PyTorchJob): Failed"
    assert (failed.has_ended, failed.cause) == (True, "worker-1 hangs")


def test_a_job_with_a_verdict_has_ended_even_if_a_pod_has_not() -> None:
    finished = job(training(pod(0), annotations={VERDICT_ANNOTATION: SUCCEEDED}), progress=progress())
    assert (finished.has_ended, finished.cause) == (True, "")
    assert len(lines(finished)) == 2, "its progress is not shown"


def test_rank_0_is_the_first_pod_of_the_role_that_leads() -> None:
    worker = PodState(role="Worker", index=0, phase=Phase.RUNNING)
    assert lead_of(training(worker, pod(0))) == pod(0)
    assert lead_of(training(pod(2), pod(1))) == pod(1)
    assert lead_of(training()) is None


def test_of_many_pods_the_remarkable_ones_are_shown_and_the_others_counted() -> None:
    pods = [pod(index, restarts=int(index == 77)) for index in range(100)]
    pods[90] = pod(90, Phase.PENDING)
    shown = lines(job(training(*pods)))
    assert shown[1:3] == ["  worker-77  Running  -  1 restart", "  worker-90  Pending  -"]
    assert f"  and {100 - MAX_PODS} more: {100 - MAX_PODS} Running" in shown
    assert len(shown) < 24, "it fits on a screen"


def test_pods_that_wait_for_one_reason_share_a_line() -> None:
    state = recorded("unschedulable")
    others = [replace(state.troubles[0], subject=f"worker-{number}") for number in range(7)]
    shown = " ".join(" ".join(lines(job(replace(state, troubles=tuple(others))))).split())
    assert shown.count("cannot be scheduled") == 1
    assert "; the same for 6 more pods" in shown


def test_a_run_shows_its_stages_and_what_its_steps_wait_for() -> None:
    began = datetime.fromtimestamp(NOW - 600, UTC)
    stage = StageState(
        place="root.sync", task="sync", title="Sync the dataset", state=RunState.RUNNING, started=began, ended=None
    )
    run = Run(id="r-1", name="nightly", state=RunState.RUNNING, created=began, ended=None, stages=(stage,))
    rows = rows_of(
        Snapshot(run=run, waiting=["Sync the dataset: its pod: cannot be scheduled"], gaps=["jobs: no", "jobs: no"]),
        NOW,
    )
    assert [row.news for row in rows] == [
        f"run r-1 (nightly): running, started {began.astimezone():%Y-%m-%d %H:%M:%S}",
        "Sync the dataset running",
        "waiting: Sync the dataset: its pod: cannot be scheduled",
        "could not be read: jobs: no",
    ], "time that passes is no news"
