"""Follow a run to its end, through outages of the API, and show the progress of its stages."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, LostContact, Unreachable
from kubetrain_pipelines.kubeflow.run import Run, read_run
from kubetrain_pipelines.kubeflow.run_status import check_succeeded
from kubetrain_pipelines.kubeflow.stage_state import RunState, StageState
from kubetrain_pipelines.requests.run_view import RunView, progress_view
from kubetrain_pipelines.requests.say import Say

if TYPE_CHECKING:
    from kubetrain_pipelines.kubeflow.run_in_cluster import Progress, RunInCluster

POLL_SECONDS = 2.0
OUTAGE_TIMEOUT_SECONDS = 1800.0
"""Long enough for an upgrade of the server."""
EVENTS = {
    RunState.PENDING: "started",
    RunState.RUNNING: "started",
    RunState.SUCCEEDED: "finished",
    RunState.FAILED: "failed",
    RunState.CANCELED: "stopped",
}


class RunProgress:
    """Progress read from the cluster. If the first connection fails, there is none."""

    def __init__(self, namespace: str, run_id: str) -> None:
        self._namespace, self._run_id = namespace, run_id
        self._cluster: RunInCluster | None = None
        self._is_reachable = True
        self._last: Mapping[str, Progress] = {}

    def changes(self) -> dict[str, "Progress"]:
        """Return the progress by task, only of tasks whose progress changed since the last call."""
        before, self._last = self._last, self._read() or self._last
        return {task: progress for task, progress in self._last.items() if before.get(task) != progress}

    def _read(self) -> Mapping[str, "Progress"]:
        from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

        if not self._is_reachable:
            return {}
        try:
            self._cluster = self._cluster or RunInCluster.connect(self._namespace, self._run_id)
            return self._cluster.progress()
        except KubernetesError:
            self._is_reachable = self._cluster is not None
            return {}


class StillRunning(KfpError, TimeoutError):
    """The run did not end in the time that was given. It continues."""


def follow_run(
    api: KfpApi, run_id: str, titles: Mapping[str, str] | None, view: RunView, *, timeout_seconds: float = math.inf
) -> Run:
    """Show the events of the run and return it when it has ended.

    Raises:
        LostContact: if the server does not answer for OUTAGE_TIMEOUT_SECONDS, or refuses to.
        StillRunning: if the run has not ended after the timeout.
    """
    shown: dict[str, str] = {}
    progress = RunProgress(api.connection.pods_namespace, run_id)
    for run in snapshots(api, run_id, titles, view.say, timeout_seconds=timeout_seconds):
        for stage in run.stages:
            for event in _new_events(stage, shown):
                view.show(event)
        if run.state.is_final:
            return run
        for event in _progress_events(run, progress):
            view.show(event)
    raise AssertionError("the last snapshot is final")


def snapshots(
    api: KfpApi,
    run_id: str,
    titles: Mapping[str, str] | None,
    say: Say,
    pause_seconds: Callable[[], float] = lambda: 0.0,
    timeout_seconds: float = math.inf,
) -> Iterator[Run]:
    """Yield the run until it has ended, through outages.

    Raises:
        LostContact: if the server does not answer for OUTAGE_TIMEOUT_SECONDS, or refuses to.
        StillRunning: if the run has not ended after the timeout.
    """
    last_answer = time.monotonic()
    deadline = last_answer + timeout_seconds
    while True:
        try:
            run = read_run(api, run_id, titles)
        except Unreachable as error:
            if time.monotonic() - last_answer > OUTAGE_TIMEOUT_SECONDS:
                raise LostContact(str(error)) from error
            say(f"{error}; retrying")
        except KfpError as error:
            raise LostContact(str(error)) from error
        else:
            last_answer = time.monotonic()
            yield run
            if run.state.is_final:
                return
        if (remaining := deadline - time.monotonic()) <= 0:
            raise StillRunning(f"run {run_id} has not ended after {timeout_seconds:g} s")
        time.sleep(min(max(POLL_SECONDS, pause_seconds()), remaining))


def _progress_events(run: Run, progress: RunProgress) -> Iterator[dict[str, object]]:
    running = {stage.task: stage.title for stage in run.stages if stage.state is RunState.RUNNING}
    changes = progress.changes() if running else {}
    for task in running.keys() & changes.keys():
        yield {"stage": running[task], "event": "progress", "progress": changes[task]}


def _new_events(stage: StageState, shown: dict[str, str]) -> Iterator[dict[str, object]]:
    """Yield what the view has not shown yet; a stage that is retried is shown again."""
    event = EVENTS.get(stage.state)
    before = shown.get(stage.place)
    if event is None or event == before:
        return
    if event != "started" and before != "started":
        yield {"stage": stage.title, "event": "started", "time": stage.started.timestamp()}
    end = stage.ended or stage.started
    yield {"stage": stage.title, "event": event, "time": (stage.started if event == "started" else end).timestamp()}
    shown[stage.place] = event


def watch_run(
    api: KfpApi, run_id: str, titles: Mapping[str, str] | None, next_steps: str, *, timeout_seconds: float = math.inf
) -> Run:
    """Return the run when it has succeeded.

    Args:
        next_steps: How to follow and cancel the run, which is shown if it continues.

    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
        KfpError: if it could not be followed to its end.
    """
    with progress_view() as view:
        try:
            run = follow_run(api, run_id, titles, view, timeout_seconds=timeout_seconds)
        except (KeyboardInterrupt, KfpError):
            view.say(f"run {run_id} continues: {next_steps}")
            raise
    check_succeeded(api, run)
    return run
