"""A run, as the API of Kubeflow Pipelines describes it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import dropwhile
from typing import Any, Self

from kubetrain_pipelines.definitions.compiled_file import stage_titles
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, equals
from kubetrain_pipelines.kubeflow.kfp_errors import NotFound
from kubetrain_pipelines.kubeflow.stage_state import RunState, StageState, parse_time, seconds_between, stages_of

RECENT_RUNS = 10
LOOKED_THROUGH = 100
"""The newest runs, among which the beginning of an ID names one."""
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, kw_only=True)
class Run:
    id: str
    name: str
    state: RunState
    created: datetime
    ended: datetime | None
    stages: tuple[StageState, ...] = ()
    """The stages that have started, in that order."""

    @classmethod
    def of(cls, message: Message, titles: Mapping[str, str] | None) -> Self:
        """
        Args:
            titles: The titles of the stages by task; None if they are unknown.
        """
        details = message.get("run_details", {}).get("task_details", [])
        details = [detail for detail in details if "display_name" in detail]  # the others are cache entries of steps
        run = cls(
            id=message["run_id"],
            name=message.get("display_name", ""),
            state=RunState.of(message),
            created=parse_time(message["created_at"]) or datetime.now(UTC),
            ended=parse_time(message.get("finished_at", "")),
            stages=stages_of(details, titles, is_over=RunState.of(message).is_final),
        )
        canceled = _canceled_at(message) if run.state is RunState.FAILED else None
        return run.as_canceled(canceled) if canceled else run

    def as_canceled(self, time: datetime) -> Self:
        """Return the run as canceled at this time, and so the stages that have failed since."""
        ended = [stage for stage in self.failed_stages if (stage.ended or time) >= time]
        stages = (replace(item, state=RunState.CANCELED) if item in ended else item for item in self.stages)
        return replace(self, state=RunState.CANCELED, stages=tuple(stages))

    @property
    def seconds(self) -> float:
        return seconds_between(self.created, self.ended)

    @property
    def failed_stages(self) -> list[StageState]:
        return [stage for stage in self.stages if stage.state is RunState.FAILED]

    def to_dict(self) -> dict[str, Any]:
        stages = [
            {"task": stage.task, "title": stage.title, "state": stage.state.value, **_times(stage.started, stage.ended)}
            for stage in self.stages
        ]
        times = _times(self.created, self.ended)
        return {"run_id": self.id, "name": self.name, "state": self.state.value, **times, "stages": stages}


def read_run(api: KfpApi, run_id: str, titles: Mapping[str, str] | None) -> Run:
    return Run.of(_get_run(api, run_id), titles)


def find_run(api: KfpApi, wanted: str) -> Message:
    """
    Args:
        wanted: The ID of the run, a name that means the newest run with this name, or the beginning of a recent ID.

    Raises:
        NotFound: if the run does not exist, or several IDs begin so.
    """
    if RUN_ID.fullmatch(wanted):
        return _get_run(api, wanted)
    try:
        run_id = next(runs_named(api, wanted))["run_id"]
    except NotFound:
        if not (found := _recent_ids(api, wanted)):
            raise
        if len(found) > 1:
            raise NotFound(f"the IDs of {len(found)} runs begin with {wanted}: {', '.join(found)}") from None
        (run_id,) = found
    return _get_run(api, run_id)


def _recent_ids(api: KfpApi, beginning: str) -> list[str]:
    newest = api.get("/runs", **_newest_first(api), page_size=LOOKED_THROUGH)
    return [run["run_id"] for run in newest.get("runs", []) if run["run_id"].startswith(beginning)]


def runs_named(api: KfpApi, name: str) -> Iterator[Message]:
    """Yield the runs with this name, the newest first.

    Raises:
        NotFound: if there are none.
    """
    is_known = False
    for item in api.list_all("runs", "/runs", **_newest_first(api), filter=equals("display_name", name)):
        if item["display_name"] == name:  # the database ignores case
            is_known = True
            yield item
    if not is_known:
        raise NotFound(_missing(name))


def recent_runs(api: KfpApi) -> list[Run]:
    found = api.get("/runs", **_newest_first(api), page_size=RECENT_RUNS)
    return [Run.of(message, {}) for message in found.get("runs", [])]


def titles_of(api: KfpApi, message: Message) -> dict[str, str] | None:
    """Return the titles of the run's stages, by task; None if its pipeline version was deleted."""
    spec = spec_of(api, message)
    return stage_titles(spec) if "root" in spec else None


def spec_of(api: KfpApi, message: Message) -> Message:
    """Return the pipeline of the run; empty if its version was deleted."""
    reference = message.get("pipeline_version_reference", {})
    spec: Message = message.get("pipeline_spec", {})
    if not spec and "pipeline_version_id" in reference:
        path = f"/pipelines/{reference['pipeline_id']}/versions/{reference['pipeline_version_id']}"
        try:
            spec = api.get(path).get("pipeline_spec", {})
        except NotFound:  # runs outlive their version
            return {}
    nested: Message = spec.get("pipeline_spec", spec)  # if there is also a platform_spec
    return nested


def _newest_first(api: KfpApi) -> dict[str, str]:
    return {"sort_by": "created_at desc", "namespace": api.connection.namespace}


def _get_run(api: KfpApi, run_id: str) -> Message:
    return api.get_by_id("/runs", run_id, _missing(run_id))


def _missing(wanted: str) -> str:
    return f"run '{wanted}' does not exist: `kubetrain status` (in Python: `kubetrain.runs()`) lists recent runs"


def _canceled_at(message: Message) -> datetime | None:
    """Return the time at which a run that failed was canceled; None if it was not, or was retried since."""
    history = sorted(message.get("state_history", []), key=lambda each: str(each.get("update_time", "")))
    states = [RunState.of(item) for item in history]
    if RunState.CANCELING not in states:
        return None
    last = len(states) - 1 - states[::-1].index(RunState.CANCELING)
    since_end = dropwhile(lambda each: not each.is_final, states[last:])
    return parse_time(history[last]["update_time"]) if all(item.is_final for item in since_end) else None


def _times(started: datetime, ended: datetime | None) -> dict[str, str | None]:
    return {"started": started.isoformat(), "ended": ended.isoformat() if ended else None}
