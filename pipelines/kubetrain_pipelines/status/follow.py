"""Read snapshots again and again until what they show has ended."""

import time
from collections.abc import Callable, Iterator
from typing import ClassVar

from kubetrain_components.jobs.kubernetes.errors import Unreachable
from kubetrain_pipelines.kubeflow.follow_run import OUTAGE_TIMEOUT_SECONDS
from kubetrain_pipelines.say import Say
from kubetrain_pipelines.status.snapshot import Snapshot
from kubetrain_trainer.errors import KubetrainError

POLL_SECONDS = 2.0


class ResultUnknown(KubetrainError):
    """A job could not be followed to its end."""

    exit_code: ClassVar[int] = 3


def follow(read: Callable[[], Snapshot], say: Say) -> Iterator[Snapshot]:
    """Yield snapshots until the end, through outages of the API server.

    Raises:
        ResultUnknown: if a later snapshot cannot be read, because the job is gone, for example.
    """
    snapshot = read()
    last_answer = time.monotonic()
    while True:
        yield snapshot
        if snapshot.is_over:
            return
        time.sleep(POLL_SECONDS)
        try:
            snapshot = read()
            last_answer = time.monotonic()
        except KubetrainError as error:
            if not isinstance(error, Unreachable) or time.monotonic() - last_answer > OUTAGE_TIMEOUT_SECONDS:
                raise ResultUnknown(
                    f"{snapshot.name} can no longer be read, so how it ended is unknown: {error}"
                ) from error
            say(f"{error}; retrying")
