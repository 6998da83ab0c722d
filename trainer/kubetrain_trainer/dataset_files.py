"""A check that a dataset version still has its files, because volumes may be purged or restored after it was synced."""

import os
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError


def check_no_file_is_lost(data_dir: Path, published: int) -> None:
    """Compare the number of files with that of the version's manifest; 0 if the data is not a version.

    Raises:
        KubetrainError: if there are fewer.
    """
    found = sum(len(files) for _, _, files in os.walk(data_dir, onerror=_refuse)) if published else 0
    if found < published:
        raise KubetrainError(
            f"{data_dir} has {found} files, but the dataset version was published with {published}: the others were "
            "lost since (is its volume purged, or was it restored?); delete the version and sync the dataset again"
        )


def _refuse(error: OSError) -> None:
    raise KubetrainError(f"cannot read {error.filename} ({error.strerror}): check its permissions") from error
