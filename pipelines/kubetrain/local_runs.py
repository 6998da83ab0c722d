"""Runs on this machine."""

from pathlib import Path
from typing import Any

from rich.console import Console

from kubetrain.login import FilePath, as_path, as_source
from kubetrain.status import Stage, Status, embedded_page, run_page
from kubetrain_components import WORKSPACE
from kubetrain_components.run.stages import EVALUATE
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.local_run.requested_run import run_requested
from kubetrain_pipelines.local_run.summary import print_results
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_trainer.errors import RunFailed


class LocalRun:
    """A run that has succeeded on this machine."""

    def __init__(self, record: RunRecord) -> None:
        self.id = record.run_id
        self.report = record.workspace / "report.html"
        self.metrics: dict[str, float | None] = record.result_of(EVALUATE).get("metrics", {})
        """The metrics on the test split; None stands for a value that is not a number."""
        self.model_uri = _model_uri(record)
        """The URI of the published version: on this machine, the one of its folder."""
        self.stages = tuple(Stage(stage.name, "succeeded", stage.seconds) for stage in record.stages)
        self._pipeline = record.pipeline
        self._status = Status(record.status, record.seconds, self.stages)

    def __repr__(self) -> str:
        return f"<kubetrain local run {self.id} of {self._pipeline}>"

    def _repr_html_(self) -> str:
        heading = f"Run {self.id} of {self._pipeline}"
        return run_page(heading, self._status, self.metrics, self.model_uri) + embedded_page("Report", self.report)


def run(
    source: FilePath = "", *, workspace: FilePath = WORKSPACE, code: FilePath | None = None, **settings: Any
) -> LocalRun:
    """Run a whole pipeline on this machine, as `kubetrain run` does, and show its progress.

    Args:
        source: A file that describes the run, or a pipeline; empty: train-pytorch.
        workspace: The folder for the run's files.
        code: A folder of your own code.
        settings: Settings by group, such as train={"epochs": 1}; they override the file. Without a data.uri, the run
            trains on an example dataset.

    Raises:
        InvalidSetting: if an argument or setting is invalid.
        RunFailed: if the run failed, with the cause. Its results so far and its report are printed.
        KubetrainError: if the run cannot start.
    """
    record = run_requested(AskedRun(source=as_source(source), settings=settings, code=as_path(code)), Path(workspace))
    if record.status != "succeeded":
        print_results(Console(force_jupyter=False), record)
        raise RunFailed(record.error)
    return LocalRun(record)


def _model_uri(record: RunRecord) -> str:
    """Return the URI of the folder, if there is one: the S3 server of the run has ended with it."""
    model = record.model
    return Path(model["path"]).as_uri() if model.get("path") else str(model.get("uri", ""))
