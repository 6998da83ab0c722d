"""The folder that a run's training writes and later steps read.

<output root>/<run id>/
    .start            the id of the newest start of this run, which alone may save checkpoints
    config.json       the settings, the framework, the dataset, and when the run began
    metrics.jsonl     one JSON object per line
    time.json         what the time was spent on, see time_spent
    tensorboard/      the same metrics for TensorBoard
    mlflow.json       the MLflow run that was created for this training, if there is one
    checkpoints/      see checkpoint_layout
    export/           the model's weights for use elsewhere, with their own manifest
    result.json       the result of a completed training; also the termination message of rank 0
    evaluation.json   metrics of the exported model on the test split
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from kubetrain_trainer.durable_files import flush_directory, read_json, with_filename, write_json
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.checkpoint_layout import (
    Checkpoint,
    TrainingProgress,
    WriteFiles,
    damaged_checkpoints,
    intact_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from kubetrain_trainer.output.grace_period import SAVE, compare_save, last_save, note_save
from kubetrain_trainer.output.image_input import describe_input
from kubetrain_trainer.output.manifest import (
    MANIFEST,
    CorruptFiles,
    describe_export,
    intact,
    verify_files,
    write_manifest,
)
from kubetrain_trainer.output.newest_start import become_newest_start, check_is_newest_start
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.layers import patterns_in
from kubetrain_trainer.some_of import some_of
from kubetrain_trainer.versions import provenance

CONFIG_SCHEMA = "kubetrain/config/v1"
EXPORT_SCHEMA = "kubetrain/export/v1"
EVALUATION_SCHEMA = "kubetrain/evaluation/v1"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingOutput:
    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def time_spent(self) -> Path:
        return self.path / "time.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def export(self) -> Path:
        return self.path / "export"

    def _other_run(self, run_id: str) -> TrainingOutput:
        """Return the output of another run under the same root."""
        return TrainingOutput(self.path.parent / run_id)

    def begin(self, framework: str, config: TrainConfig, dataset_digest: str) -> None:
        """Record the settings, framework and dataset of this run, or check that a restarted run still learns the same.

        Raises:
            KubetrainError: if the folder holds the output of another training.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        output_store.begin(self.path)
        if not self.is_finished():
            become_newest_start(self.path)
        origin = {"framework": framework, "dataset_digest": dataset_digest}
        settings = {"config": config.to_dict()}
        if not self.has_begun():
            self._record({"schema": CONFIG_SCHEMA, "created": utc_now(), **origin, **settings})
            return
        before = {**self.read_config(), **self.train_config().to_dict()}
        changed = [name for name, value in {**origin, **config.to_dict()}.items() if value != before[name]]
        changeable = TrainConfig.names_with("is_changeable")
        if others := [name for name in changed if name not in changeable]:
            raise KubetrainError(
                f"{self.path} holds the output of another training (different: {', '.join(map(_shown, others))}): give "
                "this run its own id, with train.resume_from to continue from the checkpoints here, or output directory"
            )
        if changed and not self.is_finished():  # else the record says what it was trained with
            log.info("changed since this run began: %s", ", ".join(map(_shown, changed)))
            self._record({**self.read_config(), **settings})

    def has_begun(self) -> bool:
        return (self.path / "config.json").exists()

    def withdraw(self) -> None:
        """Forget a run that has not trained, so that other settings may use its ID."""
        if not (self.metrics.exists() or self.checkpoints.exists()):
            (self.path / "config.json").unlink(missing_ok=True)
            output_store.push(self.path / "config.json")

    def _record(self, config: Mapping[str, Any]) -> None:
        self._write("config.json", config)

    def read_config(self) -> dict[str, Any]:
        return self._read("config.json")

    def train_config(self) -> TrainConfig:
        """Return the recorded settings. Settings added since then have their defaults.

        Raises:
            KubetrainError: if another version of kubetrain recorded settings that this version does not have.
        """
        recorded = self.read_config()["config"]
        unknown = [name for name in recorded if name not in TrainConfig.names()]
        if unknown:
            raise KubetrainError(
                f"{self.path / 'config.json'} was written by another version of kubetrain, with settings that this "
                f"version does not have ({', '.join(unknown)}): use that version's image, or start a new run"
            )
        return TrainConfig.from_dict(recorded)

    def write_checkpoint(
        self, progress: TrainingProgress, details: Mapping[str, Any], write_files: WriteFiles
    ) -> Checkpoint:
        check, began = partial(check_is_newest_start, self.path), time.monotonic()
        check()
        known = {**details, **self._origin(), **last_save(self.path)}
        saved = write_checkpoint(self.checkpoints, progress, known, write_files, check)
        note_save(self.path, saved.manifest["files"], time.monotonic() - began)
        return saved

    def checkpoint_to_resume(self, resume_from: str) -> Checkpoint | None:
        """Return this run's newest intact checkpoint. If it has none, return that of the run named by resume_from.

        Raises:
            CorruptFiles: if all that this run saved are damaged.
        """
        own = next(intact_checkpoints(self.checkpoints), None)
        if own is None and (damaged := damaged_checkpoints(self.checkpoints)):
            raise CorruptFiles(
                f"all checkpoints in {self.checkpoints} are damaged ({some_of(damaged)}): restore one from a backup, "
                "or delete this folder to train from the start"
            )
        if own and SAVE in own.manifest:
            compare_save(self.path, own.manifest[SAVE])
        return self._newest_of(resume_from) if own is None and resume_from else own

    def _newest_of(self, run_id: str) -> Checkpoint:
        newest = next(intact_checkpoints(self._other_run(run_id).checkpoints), None)
        if newest is None:
            raise KubetrainError(
                f"train.resume_from: no intact checkpoint in {self._other_run(run_id).checkpoints}: name a run under "
                "the same output root that has one"
            )
        theirs, ours = newest.manifest["framework"], self._origin()["framework"]
        if theirs != ours:
            raise InvalidSetting(
                f"train.resume_from: the run '{run_id}' trained with {theirs}, this one trains with {ours}: name a run "
                f"of the pipeline train-{ours}"
            )
        self._check_same_frozen(run_id)
        return newest

    def _check_same_frozen(self, run_id: str) -> None:
        config = self.read_config()["config"]
        if config.get("entry"):  # a script knows by itself what it can load
            return
        there, here = self._other_run(run_id).read_config()["config"].get("freeze", ""), config.get("freeze", "")
        if {*patterns_in(there)} != {*patterns_in(here)}:
            raise InvalidSetting(
                f"train.resume_from: the run '{run_id}' trained with train.freeze='{there}', this one with '{here}', "
                "for which its optimizer's state does not hold: keep train.freeze, or start from the model of that run "
                "with model.start"
            )

    def finish(self, last: Checkpoint, **details: str) -> None:
        """Record that the training completed, its last checkpoint as proof, and those details that are not empty."""
        given = {name: text for name, text in details.items() if text}
        self._write("result.json", {"status": "completed", **_identity(last), **given})

    def stopped_result(self, last: Checkpoint) -> dict[str, Any]:
        """Return the result of a stopped training. It is not written to a file, because the run can be resumed."""
        return {"status": "stopped", **_identity(last)}

    def is_finished(self) -> bool:
        return self.read_result() is not None

    def read_result(self) -> dict[str, Any] | None:
        output_store.pull(self.path / "result.json")
        return self._read("result.json") if (self.path / "result.json").exists() else None

    def verify_result(self, result: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint that a result names.

        Raises:
            KubetrainError: if the checkpoint is not complete or was replaced.
        """
        checkpoint = read_checkpoint(self.checkpoints / result["checkpoint"])
        if checkpoint is None:
            raise KubetrainError(f"{self.checkpoints / result['checkpoint']} is missing or incomplete: start a new run")
        if checkpoint.manifest_sha256 != result["manifest_sha256"]:
            raise KubetrainError(
                f"{checkpoint.path} is not the checkpoint that the training wrote: it was replaced; start a new run"
            )
        return checkpoint

    def write_export(self, checkpoint: Checkpoint, details: Mapping[str, Any], write_files: WriteFiles) -> None:
        """Export the model of a checkpoint. Like a checkpoint, an export is complete or does not exist."""
        partial = self.path / ".export.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        identity = {**self._identity_of_export(checkpoint), **details}
        try:
            with with_filename(self.export):
                write_files(partial)
            write_manifest(partial, {**identity, "files": describe_export(partial)})
            output_store.publish(partial)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)  # otherwise it would keep a full disk full
            raise
        shutil.rmtree(self.export, ignore_errors=True)
        partial.rename(self.export)
        flush_directory(self.path)

    def adopt_export(self, checkpoint: Checkpoint) -> None:
        """Complete the export that a script of your own has written into the folder, by adding its manifest.

        Raises:
            KubetrainError: if there is none.
        """
        identity = self._identity_of_export(checkpoint)
        write_manifest(self.export, {**identity, "files": describe_export(self.export)})
        output_store.publish(self.export)

    def _identity_of_export(self, checkpoint: Checkpoint) -> dict[str, Any]:
        origin = self._origin()
        described = {"classes": (), "input": describe_input(self.train_config(), framework := origin["framework"])}
        return {"schema": EXPORT_SCHEMA, **_identity(checkpoint), **origin, **described, **provenance(framework)}

    def read_export(self) -> dict[str, Any]:
        """Verify the export's files and return its manifest."""
        manifest = self._read(f"export/{MANIFEST}", intact)
        verify_files(self.export, manifest["files"])
        return manifest

    def write_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        # On one line, because a confusion matrix would take one line per number.
        self._write("evaluation.json", {"schema": EVALUATION_SCHEMA, **evaluation}, indent=None)

    def read_evaluation(self) -> dict[str, Any]:
        return self._read("evaluation.json")

    def _origin(self) -> dict[str, str]:
        """Return what the manifests of this run's checkpoints and export have in common."""
        recorded = self.read_config()
        return {
            "framework": recorded["framework"],
            "dataset_digest": recorded["dataset_digest"],
            "config_digest": self.train_config().digest,
        }

    def _write(self, name: str, content: Mapping[str, Any], indent: int | None = 2) -> None:
        write_json(self.path / name, content, indent)
        output_store.push(self.path / name)

    def _read(self, name: str, check: Callable[[Any], dict[str, Any]] = dict) -> dict[str, Any]:
        output_store.pull(self.path / name)
        try:
            return check(read_json(self.path / name))
        except FileNotFoundError:
            raise KubetrainError(f"{self.path} has no {name}: the step that writes it has not completed") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise KubetrainError(f"{self.path / name} is damaged: restore it, or start a new run") from None


def _shown(name: str) -> str:
    """Return the name by which users know what is recorded of a training."""
    return TrainConfig.public_name(name) if name in TrainConfig.names() else name


def _identity(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "checkpoint": checkpoint.name,
        "manifest_sha256": checkpoint.manifest_sha256,
    }


def utc_now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
