"""The record of a local run, built from its events, and the progress and summary that are printed."""

import io
import json
from pathlib import Path

from rich.console import Console

from kubetrain_components.run.events import EventLog, EventReader
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.local_run.summary import print_summary
from kubetrain_pipelines.requests.run_view import BarView, PlainView, describe_progress
from kubetrain_trainer.reporting.own_time import SHORTER_WAITS
from kubetrain_trainer.settings.config import TrainConfig

SYNCED = {"digest": "d" * 16, "objects": 3, "downloaded": 0}
EVALUATED = {"split": "test", "samples": 270, "metrics": {"accuracy": 0.98, "loss": 0.1}, "checkpoint": "step-00000003"}


def record(tmp_path: Path, *events: dict[str, object]) -> RunRecord:
    made = {"pipeline": "train-pytorch", "workspace": tmp_path, "config": TrainConfig(), "started": 100.0}
    run = RunRecord(**made, asked={}, settings={})
    for event in events:
        run.add({"time": 101.0, **event})
    return run


def started(stage: str) -> dict[str, object]:
    return {"stage": stage, "event": "started", "run_id": "run-1"}


def finished(stage: str, **result: object) -> dict[str, object]:
    return {"stage": stage, "event": "finished", "time": 105.5, "result": result}


def test_results_have_the_keys_that_scripts_read(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        started("sync_dataset"),
        finished("sync_dataset", **SYNCED),
        started("evaluate_model"),
        finished("evaluate_model", **EVALUATED),
    )
    content = run.to_json()
    assert content["run_id"] == "run-1"
    assert content["dataset"]["digest"] == "d" * 16
    assert content["evaluation"]["accuracy"] == 0.98
    assert content["stages"][0] == {"name": "sync_dataset", "status": "finished", "started": 101.0, "seconds": 4.5}
    assert content["training"] == content["model"] == {}


def test_a_run_that_ends_without_success_has_failed(tmp_path: Path) -> None:
    run = record(tmp_path, started("sync_dataset"), started("launch_training"))
    assert run.to_json()["status"] == "running"
    run.close()
    assert run.status == "failed"
    assert [stage.status for stage in run.stages] == ["failed", "failed"]


def test_the_failed_stage_provides_the_error_and_its_last_lines(tmp_path: Path) -> None:
    failure = {"stage": "launch_training", "event": "failed", "error": "it broke", "log_tail": ["a", "b"]}
    run = record(tmp_path, started("launch_training"), failure)
    assert (run.error, run.log_tail) == ("it broke", ("a", "b"))
    shown = summary(run)
    assert shown.splitlines()[-3:] == ["a", "b", "error: it broke"]


def summary(run: RunRecord) -> str:
    console = Console(file=io.StringIO(), width=60)
    print_summary(console, run)
    return console.file.getvalue()


def test_the_summary_never_truncates_a_path(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30) / "models" / "v1"
    folder.mkdir(parents=True)
    published = {"uri": folder.as_uri() + "/", "publication": f"{folder}-page"}
    run = record(tmp_path, started("promote_model"), finished("promote_model", **published))
    run.status = "succeeded"
    assert f"model files    {folder}\npublication    {folder}-page\n" in summary(run)
    assert summary(run).splitlines()[-1] == "succeeded"


def test_the_model_is_found_under_a_path_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my models" / "v1"
    folder.mkdir(parents=True)
    run = record(tmp_path, started("promote_model"), finished("promote_model", uri=folder.as_uri() + "/"))
    assert Path(run.model["path"]) == folder


def test_a_metric_that_is_not_a_number_is_shown_as_such(tmp_path: Path) -> None:
    diverged = {**EVALUATED, "metrics": {"loss": None}}
    run = record(tmp_path, started("evaluate_model"), finished("evaluate_model", **diverged))
    assert "not a number" in summary(run)


def test_the_summary_says_what_the_training_cost_and_what_it_lost(tmp_path: Path) -> None:
    time = {"seconds": {"training": 60.0, "data_wait": 40.0}, "gpu_hours": 0.05, "cpu_hours": 0.0}
    trained = finished("launch_training", step=3, world_size=2, time=time)
    lines = summary(record(tmp_path, started("launch_training"), trained)).splitlines()
    assert [line.split(maxsplit=1) for line in lines[1:4]] == [
        ["cost", "0.05 GPU-hours"],
        ["time", "1 min 40 s, 60% training steps"],
        ["lost", f"40 s (40%), waiting for data: {SHORTER_WAITS}"],
    ]


def test_the_summary_of_a_training_that_failed_says_what_its_time_was_spent_on(tmp_path: Path) -> None:
    (tmp_path / "output" / "run-1").mkdir(parents=True)
    starts = [{"started": 1000.0, "step": 7, "seconds": {"training": 90.0, "validation": 5.0}}]
    (tmp_path / "output" / "run-1" / "time.json").write_text(json.dumps(starts))
    failed = {"stage": "launch_training", "event": "failed", "error": "it broke"}
    run = record(tmp_path, started("launch_training"), failed)
    assert summary(run).startswith("time             1 min 35 s, 95% training steps\n")
    assert "time  " not in summary(record(tmp_path, started("sync_dataset")))


def test_the_summary_says_that_nothing_was_downloaded(tmp_path: Path) -> None:
    run = record(tmp_path, started("sync_dataset"), finished("sync_dataset", **SYNCED))
    assert "3 objects, nothing to download" in summary(run)


def test_progress_lines() -> None:
    progress = {"step": "3/10", "loss": 0.123456, "samples_per_second": 4127.4}
    assert describe_progress(progress) == "step 3/10 · loss 0.1235 · 4127 samples/s"
    assert describe_progress({"objects": "5/9", "bytes": 100.0}) == "objects 5/9"
    waiting = describe_progress({**progress, "data_wait_share": 0.62})
    assert waiting == "step 3/10 · loss 0.1235 · 4127 samples/s · waiting for data 62% of the time"
    assert describe_progress({**progress, "data_wait_share": 0.1}) == describe_progress(progress)


EVENTS = [
    {"stage": "sync_dataset", "event": "started", "time": 1.0},
    {"stage": "sync_dataset", "event": "progress", "time": 2.0, "progress": {"objects": "5/10"}},
    {"stage": "sync_dataset", "event": "finished", "time": 3.0},
    {"stage": "launch_training", "event": "started", "time": 3.0},
    {"stage": "launch_training", "event": "failed", "time": 4.0, "error": "x"},
]


def test_plain_lines_carry_no_control_codes() -> None:
    console = Console(file=io.StringIO(), width=60)
    view = PlainView(console)
    for event in EVENTS:
        view.show(event)
    assert console.file.getvalue().splitlines() == [
        "sync_dataset: started",
        "sync_dataset: finished after 2.0 s",
        "launch_training: started",
        "launch_training: failed after 1.0 s",
    ]


def test_a_terminal_gets_a_bar_for_each_stage() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    view = BarView(console)
    for event in EVENTS:
        view.show(event)
    view.close()
    shown = console.file.getvalue()
    assert "objects 5/10" in shown
    assert "✓" in shown
    assert "failed" in shown


def test_events_are_read_once_and_completely(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert list(reader.new_events()) == []
    EventLog(path).emit("sync_dataset", "started", run_id="r")
    with path.open("a") as file:
        file.write('{"stage": "sync')
    first = list(reader.new_events())
    assert [(event["stage"], event["event"], event["run_id"]) for event in first] == [("sync_dataset", "started", "r")]
    with path.open("a") as file:
        file.write('_dataset", "event": "finished", "time": 1.0}\n')
    assert [event["event"] for event in reader.new_events()] == ["finished"]
    assert list(reader.new_events()) == []


def test_events_that_a_full_disk_cut_off_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).emit("sync_dataset", "started")
    with path.open("a") as file:
        file.write('{"stage": "launch_training", "eve')
    EventLog(path).emit("sync_dataset", "finished")  # on the line that was cut off
    EventLog(path).emit("launch_training", "failed", error="disk full")
    run = record(tmp_path)
    for event in EventReader(path).new_events():
        run.add(event)
    assert [(stage.name, stage.status) for stage in run.stages] == [
        ("sync_dataset", "running"),
        ("launch_training", "failed"),
    ]
    assert run.error == "disk full"
