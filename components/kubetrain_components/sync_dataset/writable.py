"""Check, before anything long starts, that the user of the pods can write to the volumes of the run."""

import os
import tempfile
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError


def check_writable(directory: Path) -> None:
    """
    Raises:
        KubetrainError: if the user cannot write, with the remedy.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".kubetrain-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise KubetrainError(
            f"user {os.getuid()} cannot write to the {directory.name} PVC mounted at {directory} "
            f"({error.strerror or error}): its storage ignores fsGroup, so change the owner or mode of its folder, set "
            "user in the placement to its owner, or use another storage class"
        ) from error
