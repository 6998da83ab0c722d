"""Whether the pods' user may write where this run will have to: better known before anything long starts."""

import os
import tempfile
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError


def check_writable(directory: Path) -> None:
    """
    Raises:
        KubetrainError: naming the claim that is mounted there, and the remedy.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".kubetrain-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise KubetrainError(
            f"the {directory.name} claim mounted at {directory} cannot be written by user {os.getuid()} "
            f"({error.strerror or error}): its storage takes no notice of fsGroup, so have its folder's owner or mode "
            "changed, set user of the placement to its owner, or use another storage class"
        ) from error
