"""The step: choose the checkpoint that becomes the model, prove it intact, and hand on its export."""

import shutil
from pathlib import Path
from typing import Any

from kubetrain_trainer.checkpoint_layout import choose_checkpoint
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.training_output import TrainingOutput

LARGEST_COPY_BYTES = 2 << 30


def collect_checkpoint(output: TrainingOutput, destination: Path) -> dict[str, Any]:
    """Copy the exported model to the destination, or beyond 2 GiB only its manifest; describe what was chosen.

    Raises:
        KubetrainError: where nothing complete is there, a byte is wrong, or the export is of another checkpoint.
    """
    chosen = choose_checkpoint(output.checkpoints, output.train_config())
    export = output.read_export()
    if export["manifest_sha256"] != chosen.manifest_sha256:
        raise KubetrainError(
            f"the export in {output.export} is of {export['checkpoint']}, but {chosen.name} is the one to take, of "
            f"those that are intact: start a new run with resume_from={output.path.name}, or delete what was added"
        )
    size = sum(file["size"] for file in export["files"])
    _hand_on(output.export, destination, size)
    return {
        "checkpoint": chosen.name,
        "step": chosen.step,
        "manifest_sha256": chosen.manifest_sha256,
        "metrics": dict(chosen.manifest["metrics"]),
        "framework": export["framework"],
        "dataset_digest": export["dataset_digest"],
        "config_digest": export["config_digest"],
        "bytes": size,
        "path": str(output.export),
    }


def _hand_on(export: Path, destination: Path, size: int) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    whole = size <= LARGEST_COPY_BYTES
    for path in export.iterdir() if whole else [export / "manifest.json"]:
        shutil.copyfile(path, destination / path.name)
