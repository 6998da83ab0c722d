"""A run as Kubeflow Pipelines' API tells of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Self

from kubetrain_pipelines.kubeflow.compiled_file import stage_titles
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, named
from kubetrain_pipelines.kubeflow.kfp_errors import NotFound

LAST_RUNS = 10
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EXECUTOR = "executor"
"""What Kubeflow Pipelines calls the node that runs a step's program, in every step."""


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
    """Those that have begun, in that order."""
    tries: tuple[tuple[datetime, str], ...] = ()
    """When each try to run a step's program began, and its node; of which step it is, only the time tells."""

    @classmethod
    def of(cls, message: Message, titles: Mapping[str, str]) -> Self:
        return cls(
            id=message["run_id"],
            name=message.get("display_name", ""),
            state=_state(message),
            created=_time(message["created_at"]) or datetime.now(UTC),
            ended=_time(message.get("finished_at", "")),
            stages=_stages(message, titles),
            tries=_tries(message),
        )

    @property
    def failed_stages(self) -> list[StageState]:
        return [stage for stage in self.stages if stage.state is RunState.FAILED]

    def tries_of(self, stage: StageState) -> list[str]:
        return [
            node
            for began, node in self.tries
            if stage.started <= began and (stage.ended is None or began <= stage.ended)
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
        wanted: Its id, or its name: then the last of this name.

    Raises:
        NotFound: where there is none.
    """
    if RUN_ID.fullmatch(wanted):
        return api.get(f"/runs/{wanted}")
    found = _runs(api, page_size=1, filter=named("display_name", wanted))
    if not found:
        raise NotFound(f"there is no run '{wanted}': `kubetrain status` shows the last ones")
    return api.get(f"/runs/{found[0]['run_id']}")


def last_runs(api: KfpApi, number: int = LAST_RUNS) -> list[Run]:
    return [Run.of(message, {}) for message in _runs(api, page_size=number)]


def titles_of(api: KfpApi, message: Message) -> dict[str, str]:
    """What people call the stages of this run."""
    reference = message.get("pipeline_version_reference", {})
    spec: Message = message.get("pipeline_spec", {})
    if not spec and "pipeline_version_id" in reference:
        path = f"/pipelines/{reference['pipeline_id']}/versions/{reference['pipeline_version_id']}"
        try:
            spec = api.get(path).get("pipeline_spec", {})
        except NotFound:  # the version was deleted; its runs remain
            return {}
    spec = spec.get("pipeline_spec", spec)  # beside it where there is a platform's part too
    return stage_titles(spec) if "root" in spec else {}


def _runs(api: KfpApi, **query: Any) -> list[Message]:
    namespace = api.connection.namespace
    found: list[Message] = api.get("/runs", sort_by="created_at desc", namespace=namespace, **query).get("runs", [])
    return found


def _state(message: Message) -> RunState:
    """A run that was canceled is called FAILED in the end; its history knows better."""
    state = RunState.of(message)
    history = {RunState.of(each) for each in message.get("state_history", [])}
    return RunState.CANCELED if state is RunState.FAILED and RunState.CANCELING in history else state


def _stages(message: Message, titles: Mapping[str, str]) -> tuple[StageState, ...]:
    """The tasks of the pipeline: the API tells of every node of the workflow, drivers and retries among them."""
    is_over = RunState.of(message).is_final
    stages = []
    for each in _details(message):
        started = _time(each.get("start_time", ""))
        if started and "state" in each and each["display_name"] in titles:  # without one it was left out
            state = RunState.of(each)
            # Nobody updates the tasks of a run that was terminated.
            state = RunState.CANCELED if is_over and not state.is_final else state
            title = titles[each["display_name"]]
            ended = _time(each.get("end_time", ""))
            stages.append(StageState(task=each["display_name"], title=title, state=state, started=started, ended=ended))
    return tuple(sorted(stages, key=lambda stage: (stage.started, stage.task)))


def _tries(message: Message) -> tuple[tuple[datetime, str], ...]:
    executors = [each for each in _details(message) if each["display_name"] == EXECUTOR]
    return tuple(
        (began, child["pod_name"])
        for each in executors
        for child in each.get("child_tasks", [])
        if "pod_name" in child and (began := _time(each.get("start_time", "")))
    )


def _details(message: Message) -> list[Message]:
    found: list[Message] = message.get("run_details", {}).get("task_details", [])
    return found


def _time(stamp: str) -> datetime | None:
    """None for what has not come yet: it stands at the beginning of some era."""
    time = datetime.fromisoformat(stamp) if stamp else None
    return time if time and time.year > 1970 else None


def _times(started: datetime, ended: datetime | None) -> dict[str, str | None]:
    return {"started": started.isoformat(), "ended": ended.isoformat() if ended else None}
