"""The states of runs and of their stages, and the times in the API's messages."""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self


class RunState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELING = "canceling"
    CANCELED = "canceled"
    SKIPPED = "skipped"
    PAUSED = "paused"
    UNKNOWN = "unknown"

    @property
    def is_final(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELED, RunState.SKIPPED)

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        return cls.__members__.get(message.get("state", "PENDING"), cls.UNKNOWN)


def parse_time(stamp: str) -> datetime | None:
    """Return the time, or None if it is unknown, for which the API gives one in 1970 or before."""
    time = datetime.fromisoformat(stamp) if stamp else None
    return time if time and time.year > 1970 else None


def seconds_between(started: datetime, ended: datetime | None) -> float:
    """Return the seconds until the end, or until now."""
    return ((ended or datetime.now(UTC)) - started).total_seconds()
