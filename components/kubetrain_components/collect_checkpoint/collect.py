"""The step: choose the checkpoint that becomes the model, verify it, and copy its export."""

import shutil
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.checkpoint_layout import choose_checkpoint
from kubetrain_trainer.output.training_output import TrainingOutput

MAX_COPY_BYTES = 2 << 30


def collect_checkpoint(output: TrainingOutput, destination: Path) -> dict[str, Any]:
    """Copy the exported model to the destination, or only its manifest if larger than 2 GiB; describe the checkpoint.

    A script that publishes none has only a checkpoint, which proves its end.

    Raises:
        KubetrainError: if every checkpoint is incomplete or corrupt, or the export was made from another one.
    """
    config = output.train_config()
    chosen = choose_checkpoint(output.checkpoints, config)
    nothing = {**chosen.manifest, "manifest_sha256": chosen.manifest_sha256, "files": []}
    export = output.read_export() if config.publishes else nothing
    if export["manifest_sha256"] != chosen.manifest_sha256:
        raise KubetrainError(
            f"the export in {output.export} was made from {export['checkpoint']}, but the checkpoint to use is "
            f"{chosen.name}: start a new run with train.resume_from={output.path.name}, or delete the checkpoints "
            "added since"
        )
    size = sum(file["size"] for file in export["files"])
    if config.publishes:
        _copy_export(output.export, destination, size)
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


def _copy_export(export: Path, destination: Path, size: int) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    is_small = size <= MAX_COPY_BYTES
    if is_small:
        shutil.copytree(export, destination, copy_function=shutil.copyfile, dirs_exist_ok=True)
    else:
        shutil.copyfile(export / "manifest.json", destination / "manifest.json")
