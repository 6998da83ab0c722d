"""The record of a local run, built from its events and shown by run.json, the summary, the report and `status`."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubetrain_components.evaluate_model.report import run_report
from kubetrain_components.jobs.local.record import is_running, this_process
from kubetrain_components.object_store.open_store import local_path
from kubetrain_components.run.events import EventReader
from kubetrain_components.run.request import Request, by_name
from kubetrain_components.run.stages import EVALUATE, PROMOTE, STAGES, RunStage
from kubetrain_components.secret_values import shareable, shareable_own
from kubetrain_pipelines.jobs.local_jobs import RECORD, RECORD_SCHEMA, read_record
from kubetrain_trainer.durable_files import write_atomically, write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig

KILLED = "its process was killed, or could not write how it ended"


@dataclass(kw_only=True)
class StageRecord:
    name: str
    started: float
    status: str = "running"
    """running, finished, failed or stopped."""
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    def end(self, status: str, ended: float) -> None:
        self.status = status
        self.seconds = round(ended - self.started, 3)


@dataclass(kw_only=True)
class RunRecord:
    pipeline: str
    workspace: Path
    asked: Request
    """The settings that the user gave."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that only the user's own pipeline has, by name."""
    settings: Request
    """The settings that the run uses, which include the URIs on this machine."""
    config: TrainConfig
    started: float
    owner: dict[str, float] = field(default_factory=this_process)
    run_id: str = ""
    status: str = "running"
    """running, succeeded, failed or stopped."""
    error: str = ""
    log_tail: tuple[str, ...] = ()
    finished: float = 0.0
    stages: list[StageRecord] = field(default_factory=list)

    def add(self, event: dict[str, Any]) -> None:
        self.run_id = event.get("run_id", self.run_id)
        if event["event"] == "started":
            self.stages.append(StageRecord(name=event["stage"], started=event["time"]))
        elif event["event"] in ("finished", "failed", "stopped"):
            stage = next(item for item in reversed(self.stages) if item.name == event["stage"])
            stage.end(event["event"], event["time"])
            stage.result = event.get("result", {})
        if event["event"] == "failed":
            self.error, self.log_tail = event["error"], tuple(event.get("log_tail", ()))

    def close(self) -> None:
        """End the run and the stages whose end was not reported. Without a known success the run has failed."""
        self.status = "failed" if self.status == "running" else self.status
        self.finished = time.time()
        for stage in self.stages:
            if stage.status == "running":
                stage.end(self.status, self.finished)

    @property
    def seconds(self) -> float:
        return round(self.finished - self.started, 3)

    @property
    def output(self) -> TrainingOutput | None:
        """The output of the training; None: the run has no ID yet."""
        return TrainingOutput(self.workspace / "output" / self.run_id) if self.run_id else None

    def result_of(self, stage: RunStage) -> dict[str, Any]:
        """Return the result that a stage reported, or {}."""
        return next((item.result for item in self.stages if item.name == stage.name), {})

    def has_finished(self, stage: RunStage) -> bool:
        return any(item.name == stage.name and item.status == "finished" for item in self.stages)

    @property
    def named_settings(self) -> dict[str, Any]:
        """The run's settings by name, also those of the training that are at their defaults."""
        return by_name(self.settings) | {
            TrainConfig.public_name(name): value for name, value in self.config.to_dict().items()
        }

    @property
    def model(self) -> dict[str, Any]:
        """The published version, with the path of its files if they are on this machine."""
        published = self.result_of(PROMOTE)
        if not published:
            return {}
        uri = published["uri"]
        path = local_path(uri, mirror=self.workspace / "s3")
        return {**published, "path": str(path) if path.is_dir() else ""}

    def to_json(self) -> dict[str, Any]:
        evaluation, shown = self.result_of(EVALUATE), shareable(by_name(self.asked))
        asked = {group: {key: shown[f"{group}.{key}"] for key in named} for group, named in self.asked.items()}
        return {
            "schema": RECORD_SCHEMA,
            "pipeline": self.pipeline,
            "run_id": self.run_id,
            "status": self.status,
            "error": self.error,
            "log_tail": self.log_tail,
            "owner": self.owner,
            "started": self.started,
            "finished": self.finished,
            "seconds": self.seconds,
            "workspace": str(self.workspace),
            "request": {"pipeline": self.pipeline, **asked, **shareable_own(self.own)},
            "settings": shareable(self.named_settings),
            **{stage.result_key: self.result_of(stage) for stage in STAGES},
            EVALUATE.result_key: {**evaluation, **evaluation.get("metrics", {})},
            PROMOTE.result_key: self.model,
            "stages": [
                {"name": stage.name, "status": stage.status, "started": stage.started, "seconds": stage.seconds}
                for stage in self.stages
            ],
        }


def write_start(record: RunRecord) -> None:
    """Replace the record of the last run, which a run that is killed would otherwise leave.

    Raises:
        KubetrainError: if it cannot be written.
    """
    try:
        write_json(record.workspace / RECORD, record.to_json())
        (record.workspace / "report.html").unlink(missing_ok=True)
    except OSError as error:
        raise _not_written(record, error) from error


def write_end(record: RunRecord) -> None:
    """Write the record of a run that has ended.

    Raises:
        KubetrainError: if it cannot be written and the run has no other error, which would be lost.
    """
    try:
        _write_record(record)
    except OSError as error:
        if record.status == "succeeded":
            raise _not_written(record, error) from error
        record.error += f"; {_not_written(record, error)}" if record.error else ""


def _not_written(record: RunRecord, error: OSError) -> KubetrainError:
    path = error.filename or record.workspace
    return KubetrainError(
        f"cannot write {path} ({error.strerror}): free space, or choose another folder with --workspace"
    )


def _write_record(record: RunRecord) -> None:
    """Write run.json and report.html. Scripts read run.json, so it comes first."""
    content = record.to_json()
    write_json(record.workspace / RECORD, content)
    write_atomically(
        record.workspace / "report.html", run_report(content, record.config.to_dict(), record.output).encode()
    )


def read_run(workspace: Path) -> RunRecord:
    """
    Raises:
        InvalidSetting: if the workspace has no record of a run.
    """
    written = read_record(workspace)
    record = RunRecord(
        pipeline=written.get("pipeline", ""),
        workspace=workspace,
        asked={},
        settings={},
        config=TrainConfig(),
        started=written.get("started", 0.0),
        run_id=written["run_id"],
    )
    for event in EventReader(workspace / "events.jsonl").new_events():
        record.add(event)  # the first one has the ID, which is not in the record before its end
    record.status, record.finished = written["status"], written.get("finished", 0.0)
    record.error = written["error"] or record.error  # before its end, the error of a stage is only in the events
    if record.status == "running" and not is_running(written["owner"]):
        record.status, record.error = "failed", record.error or KILLED
    return record
