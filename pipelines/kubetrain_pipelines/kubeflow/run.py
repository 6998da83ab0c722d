"""A run, as the API of Kubeflow Pipelines describes it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Self

from kubetrain_pipelines.kubeflow.compiled_file import stage_titles
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, equals
from kubetrain_pipelines.kubeflow.kfp_errors import NotFound

RECENT_RUNS = 10
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EXECUTOR = "executor"
"""The name of the node that runs the program of a step; the same in every step."""


class RunState(Enum):
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


@dataclass(frozen=True, kw_only=True)
class StageState:
    task: str
    title: str
    state: RunState
    started: datetime
    ended: datetime | None


@dataclass(frozen=True, kw_only=True)
class Run:
    id: str
    name: str
    state: RunState
    created: datetime
    ended: datetime | None
    stages: tuple[StageState, ...] = ()
    """The stages that have started, in that order."""
    attempts: tuple[tuple[datetime, str], ...] = ()
    """The start time and node of each attempt at a step. The API does not name the step, so the time identifies it."""

    @classmethod
    def of(cls, message: Message, titles: Mapping[str, str]) -> Self:
        return cls(
            id=message["run_id"],
            name=message.get("display_name", ""),
            state=_state(message),
            created=_time(message["created_at"]) or datetime.now(UTC),
            ended=_time(message.get("finished_at", "")),
            stages=_stages(message, titles),
            attempts=_attempts(message),
        )

    @property
    def failed_stages(self) -> list[StageState]:
        return [stage for stage in self.stages if stage.state is RunState.FAILED]

    def attempts_of(self, stage: StageState) -> list[str]:
        return [
            node
            for started, node in self.attempts
            if stage.started <= started and (stage.ended is None or started <= stage.ended)
        ]

    def to_dict(self) -> dict[str, Any]:
        stages = [
            {"task": each.task, "title": each.title, "state": each.state.value, **_times(each.started, each.ended)}
            for each in self.stages
        ]
        times = _times(self.created, self.ended)
        return {"run_id": self.id, "name": self.name, "state": self.state.value, **times, "stages": stages}


def read_run(api: KfpApi, run_id: str, titles: Mapping[str, str] | None = None) -> Run:
    message = api.get(f"/runs/{run_id}")
    return Run.of(message, titles_of(api, message) if titles is None else titles)


def find_run(api: KfpApi, wanted: str) -> Message:
    """
    Args:
        wanted: The ID of the run, or a name that means the newest run with this name.

    Raises:
        NotFound: if the run does not exist.
    """
    if RUN_ID.fullmatch(wanted):
        return api.get(f"/runs/{wanted}")
    found = _runs(api, page_size=1, filter=equals("display_name", wanted))
    if not found:
        raise NotFound(f"run '{wanted}' does not exist: `kubetrain status` lists recent runs")
    return api.get(f"/runs/{found[0]['run_id']}")


def recent_runs(api: KfpApi) -> list[Run]:
    return [Run.of(message, {}) for message in _runs(api, page_size=RECENT_RUNS)]


def titles_of(api: KfpApi, message: Message) -> dict[str, str]:
    """Return the titles of the run's stages, by task."""
    reference = message.get("pipeline_version_reference", {})
    spec: Message = message.get("pipeline_spec", {})
    if not spec and "pipeline_version_id" in reference:
        path = f"/pipelines/{reference['pipeline_id']}/versions/{reference['pipeline_version_id']}"
        try:
            spec = api.get(path).get("pipeline_spec", {})
        except NotFound:  # runs outlive their version
            return {}
    spec = spec.get("pipeline_spec", spec)  # nested if there is also a platform_spec
    return stage_titles(spec) if "root" in spec else {}


def _runs(api: KfpApi, **query: Any) -> list[Message]:
    namespace = api.connection.namespace
    found: list[Message] = api.get("/runs", sort_by="created_at desc", namespace=namespace, **query).get("runs", [])
    return found


def _state(message: Message) -> RunState:
    """Return the state. Canceled runs also end as FAILED; only the history differs."""
    state = RunState.of(message)
    history = {RunState.of(each) for each in message.get("state_history", [])}
    return RunState.CANCELED if state is RunState.FAILED and RunState.CANCELING in history else state


def _stages(message: Message, titles: Mapping[str, str]) -> tuple[StageState, ...]:
    """Select the tasks of the pipeline from the nodes of the workflow, which include drivers and retries."""
    is_over = RunState.of(message).is_final
    stages = []
    for each in _details(message):
        started = _time(each.get("start_time", ""))
        if started and "state" in each and each["display_name"] in titles:  # a skipped task has no state
            state = RunState.of(each)
            # The server does not update the tasks of a terminated run.
            state = RunState.CANCELED if is_over and not state.is_final else state
            title = titles[each["display_name"]]
            ended = _time(each.get("end_time", ""))
            stages.append(StageState(task=each["display_name"], title=title, state=state, started=started, ended=ended))
    return tuple(sorted(stages, key=lambda stage: (stage.started, stage.task)))


def _attempts(message: Message) -> tuple[tuple[datetime, str], ...]:
    executors = [each for each in _details(message) if each["display_name"] == EXECUTOR]
    return tuple(
        (started, child["pod_name"])
        for each in executors
        for child in each.get("child_tasks", [])
        if "pod_name" in child and (started := _time(each.get("start_time", "")))
    )


def _details(message: Message) -> list[Message]:
    found: list[Message] = message.get("run_details", {}).get("task_details", [])
    return found


def _time(stamp: str) -> datetime | None:
    """Return the time, or None if it is unknown, for which the API gives one in 1970 or before."""
    time = datetime.fromisoformat(stamp) if stamp else None
    return time if time and time.year > 1970 else None


def _times(started: datetime, ended: datetime | None) -> dict[str, str | None]:
    return {"started": started.isoformat(), "ended": ended.isoformat() if ended else None}
