"""Follow a run to its end, through outages of the API, and show the progress of its stages."""

import time
from collections.abc import Callable, Iterator, Mapping

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import Unreachable
from kubetrain_pipelines.kubeflow.run import Run, RunState, StageState, read_run
from kubetrain_pipelines.kubeflow.run_progress import RunProgress
from kubetrain_pipelines.run_view import RunView

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


def follow_run(api: KfpApi, run_id: str, titles: Mapping[str, str], view: RunView, say: Callable[[str], None]) -> Run:
    """Show the events of the run and return it when it has ended.

    Raises:
        Unreachable: if the server does not answer for OUTAGE_TIMEOUT_SECONDS.
    """
    shown: dict[str, str] = {}
    progress = RunProgress(api.connection.pods_namespace, run_id)
    last_answer = time.monotonic()
    while True:
        try:
            run = read_run(api, run_id, titles)
        except Unreachable as error:
            if time.monotonic() - last_answer > OUTAGE_TIMEOUT_SECONDS:
                raise
            say(f"{error}; retrying")
        else:
            last_answer = time.monotonic()
            for stage in run.stages:
                for event in _new_events(stage, shown):
                    view.show(event)
            if run.state.is_final:
                return run
            for event in _progress_events(run, progress):
                view.show(event)
        time.sleep(POLL_SECONDS)


def _progress_events(run: Run, progress: RunProgress) -> Iterator[dict[str, object]]:
    running = {stage.task: stage.title for stage in run.stages if stage.state is RunState.RUNNING}
    changes = progress.changes() if running else {}
    for task in running.keys() & changes.keys():
        yield {"stage": running[task], "event": "progress", "progress": changes[task]}


def _new_events(stage: StageState, shown: dict[str, str]) -> Iterator[dict[str, object]]:
    """Yield what the view has not shown yet; a stage that is retried is shown again."""
    event = EVENTS.get(stage.state)
    before = shown.get(stage.task)
    if event is None or event == before:
        return
    if event != "started" and before != "started":
        yield {"stage": stage.title, "event": "started", "time": stage.started.timestamp()}
    end = stage.ended or stage.started
    yield {"stage": stage.title, "event": event, "time": (stage.started if event == "started" else end).timestamp()}
    shown[stage.task] = event
