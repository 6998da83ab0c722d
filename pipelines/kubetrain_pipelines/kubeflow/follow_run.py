"""Following a run to its end, as a view of its stages shows it; the API may be away for a while."""

import time
from collections.abc import Callable, Iterator, Mapping

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import Unreachable
from kubetrain_pipelines.kubeflow.run import Run, RunState, StageState, read_run
from kubetrain_pipelines.kubeflow.run_progress import RunProgress
from kubetrain_pipelines.run_view import RunView

POLL_SECONDS = 2.0
PATIENCE_SECONDS = 1800.0
"""For a server that does not answer: it may be upgraded meanwhile."""
EVENTS = {
    RunState.PENDING: "started",
    RunState.RUNNING: "started",
    RunState.SUCCEEDED: "finished",
    RunState.FAILED: "failed",
    RunState.CANCELED: "stopped",
}


def follow_run(api: KfpApi, run_id: str, titles: Mapping[str, str], view: RunView, say: Callable[[str], None]) -> Run:
    """The run when it is over.

    Raises:
        Unreachable: where the server stays away for longer than our patience.
    """
    shown: dict[str, str] = {}
    progress = RunProgress(api.connection.pods_namespace, run_id)
    last_answer = time.monotonic()
    while True:
        try:
            run = read_run(api, run_id, titles)
        except Unreachable as trouble:
            if time.monotonic() - last_answer > PATIENCE_SECONDS:
                raise
            say(f"{trouble}; asked again")
        else:
            last_answer = time.monotonic()
            for stage in run.stages:
                for event in _news(stage, shown):
                    view.show(event)
            if run.state.is_final:
                return run
            for event in _progress(run, progress):
                view.show(event)
        time.sleep(POLL_SECONDS)


def _progress(run: Run, progress: RunProgress) -> Iterator[dict[str, object]]:
    running = {stage.task: stage.title for stage in run.stages if stage.state is RunState.RUNNING}
    told = progress.news() if running else {}
    for task in running.keys() & told.keys():
        yield {"stage": running[task], "event": "progress", "progress": told[task]}


def _news(stage: StageState, shown: dict[str, str]) -> Iterator[dict[str, object]]:
    """What the view has not shown yet; a stage that a retry starts anew is shown anew."""
    event = EVENTS.get(stage.state)
    before = shown.get(stage.task)
    if event is None or event == before:
        return
    if event != "started" and before != "started":
        yield {"stage": stage.title, "event": "started", "time": stage.started.timestamp()}
    end = stage.ended or stage.started
    yield {"stage": stage.title, "event": event, "time": (stage.started if event == "started" else end).timestamp()}
    shown[stage.task] = event
