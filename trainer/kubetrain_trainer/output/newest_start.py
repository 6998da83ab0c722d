"""Only the newest start of a run may save: if two train at once, their checkpoints and metrics would mix."""

from __future__ import annotations

import uuid
from pathlib import Path

from kubetrain_trainer.durable_files import write_atomically
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output import output_store
from kubetrain_trainer.termination import call_before_end

START = ".start"
_own: dict[Path, str] = {}
"""The ids of the starts in this process, by the folder of their output."""


def become_newest_start(output: Path) -> None:
    _own[output] = own = uuid.uuid4().hex
    write_atomically(output / START, own.encode())
    output_store.push(output / START)
    call_before_end(lambda _: output_store.push_last(output, own))


def check_is_newest_start(output: Path) -> None:
    """
    Raises:
        KubetrainError: if the run has been started again since it was started in this process.
    """
    output_store.pull(output / START)
    if output in _own and (output / START).read_text() != _own[output]:
        raise KubetrainError(
            f"another start of this run began to train while this one did, and saves to {output}: this one ends, so "
            "that their checkpoints do not mix"
        )
