"""The stages of a run, and their pods, found in the nodes of its workflow."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from kubetrain_pipelines.kubeflow.workflow_nodes import (
    EXECUTOR,
    ITERATION,
    LAST_ATTEMPT,
    attempts_in,
    node_names,
    place_of,
)


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


@dataclass(frozen=True, kw_only=True)
class StageState:
    place: str
    """Identifies the stage: several iterations of a loop have the same task."""
    task: str
    title: str
    state: RunState
    started: datetime
    ended: datetime | None
    attempts: tuple[str, ...] = ()
    """The IDs of the nodes that ran the stage's program, in the order of the attempts."""

    @property
    def seconds(self) -> float:
        return seconds_between(self.started, self.ended)


def stages_of(
    details: Sequence[dict[str, Any]], titles: Mapping[str, str] | None, *, is_over: bool
) -> tuple[StageState, ...]:
    """Return the stages that have started, in that order, with distinct titles.

    Args:
        titles: The titles by task; None if they are unknown: then each step is a stage, and its task is the title.
    """
    names = node_names(details)
    attempts = _attempts(names)
    if titles is None:
        titles = {_last_part(place): _last_part(place) for place in attempts}
    stages = []
    for detail in details:
        started = parse_time(detail.get("start_time", ""))
        if started and "state" in detail and detail["display_name"] in titles:  # a skipped task has no state
            place = _place(detail, names)
            state = RunState.of(detail)
            stages.append(
                StageState(
                    place=place,
                    task=detail["display_name"],
                    title=_title(titles[detail["display_name"]], place),
                    # The server may leave the tasks of a terminated run as they were.
                    state=RunState.CANCELED if is_over and not state.is_final else state,
                    started=started,
                    ended=parse_time(detail.get("end_time", "")),
                    attempts=attempts.get(place, ()),
                )
            )
    return _with_distinct_titles(sorted(stages, key=lambda stage: (stage.started, stage.place)))


def _attempts(names: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the nodes that run the program of each step, by the step's place."""
    retried = {LAST_ATTEMPT.sub("", name) for name in names.values() if LAST_ATTEMPT.search(name)}
    found = defaultdict(list)
    for node, name in names.items():
        step, _, part = place_of(name).rpartition(".")
        if part == EXECUTOR and name not in retried:
            found[step].append((attempts_in(name), node))
    return {step: tuple(node for _, node in sorted(nodes)) for step, nodes in found.items()}


def _place(detail: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Return the place of a node, which the names of its children contain."""
    task = detail["display_name"]
    for child in detail.get("child_tasks", []):
        name = place_of(names.get(child.get("pod_name", ""), ""))
        for place in (name, name.rpartition(".")[0]):
            if _last_part(place) == task:
                return place
    return str(task)


def _last_part(place: str) -> str:
    return place.rpartition(".")[2]


def _with_distinct_titles(stages: Sequence[StageState]) -> tuple[StageState, ...]:
    """Add its place to a title that several stages share."""
    counts = Counter(stage.title for stage in stages)
    return tuple(
        replace(stage, title=f"{stage.title} ({stage.place})") if counts[stage.title] > 1 else stage for stage in stages
    )


def _title(title: str, place: str) -> str:
    numbers = [match[1] for match in ITERATION.finditer(place)]
    return f"{title} (iteration {'.'.join(numbers)})" if numbers else title
