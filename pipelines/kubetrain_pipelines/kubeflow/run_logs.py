"""The logs of a run's steps: as they are now, or as they grow until the run ends."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kubetrain_pipelines.kubeflow.follow_logs import FollowedLogs
from kubetrain_pipelines.kubeflow.follow_run import snapshots
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run, find_run, titles_of
from kubetrain_pipelines.kubeflow.stage_state import StageState
from kubetrain_pipelines.kubeflow.step_logs import NoLog, StepLogs
from kubetrain_pipelines.requests.say import Say
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

AROUND = re.compile(
    r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.go:\d+\] "  # the launcher
    r"|time=\S+ level=\w+ msg=.*\bargo=true|\{\".*\"argo\":true|Error: exit status \d+$"  # Argo
    r"|\[KFP Executor [^]]*\]: ("
    r"Looking for component `|--component_module_path is not specified|Loading KFP component \"|Got executor_input:"
    r"|Did not write output file|Wrote executor output file to )"
)
OPENS_JSON = re.compile(r".*(\{|Got executor_input:)$")


def read_logs(api: KfpApi, wanted: str, stage: str, *, everything: bool = False) -> Iterator[str]:
    """Yield the logs of a run, each as one text.

    Args:
        wanted: The ID of the run, or its name.
        stage: The task or title of one stage; empty for all stages, each with a heading.
        everything: Include what Kubeflow Pipelines and Argo wrote around the steps.

    Raises:
        NoLog: if there is none yet.
    """
    message = find_run(api, wanted)
    titles = titles_of(api, message)
    run = Run.of(message, titles)
    selected = _SelectedLines(with_headings=not stage, everything=everything)
    logs = StepLogs(api, run)
    found = [log for log in logs.of(_Chosen(stage, run, titles).of(run)) if log.text]
    for log in found:
        yield from selected.of(log.stage, log.node, log.text.removesuffix("\n").split("\n"))
    if not found:
        raise _no_log(run, logs)
    if selected.is_empty:
        yield f"the steps themselves wrote nothing: --all prints {selected.hidden} lines of Kubeflow Pipelines"


def follow_logs(api: KfpApi, wanted: str, say: Say, stage: str, *, everything: bool = False) -> Iterator[str]:
    """Like `read_logs`, but yield what the steps write until the run ends.

    Args:
        say: Told about outages.
    """
    message = find_run(api, wanted)
    titles = titles_of(api, message)
    run = Run.of(message, titles)
    chosen = _Chosen(stage, run, titles)
    selected = _SelectedLines(with_headings=not stage, everything=everything)
    logs = FollowedLogs(api, run)
    for snapshot in snapshots(api, run.id, titles, say, lambda: logs.pause_seconds):
        for item in chosen.of(snapshot):
            for node, lines in logs.new_lines(item, is_over=item.state.is_final or snapshot.state.is_final):
                yield from selected.of(item, node, lines)


class _Chosen:
    """The stages whose logs are wanted."""

    def __init__(self, wanted: str, run: Run, titles: Mapping[str, str] | None) -> None:
        self._wanted = wanted
        tasks = {stage.task: stage.task for stage in run.stages} if titles is None else titles
        names = [name for task, title in tasks.items() for name in (task, task.replace("-", "_"), title)]
        names += [stage.title for stage in run.stages]
        if wanted and wanted not in names:
            raise InvalidSetting(f"run {run.id} has no stage '{wanted}': {did_you_mean(wanted, names)}")
        self._tasks = {task for task, title in tasks.items() if wanted in (task, task.replace("-", "_"), title)}

    def of(self, run: Run) -> list[StageState]:
        return [
            stage
            for stage in run.stages
            if not self._wanted or stage.task in self._tasks or stage.title == self._wanted
        ]


class _SelectedLines:
    def __init__(self, *, with_headings: bool, everything: bool = False) -> None:
        self.is_empty = True
        self._with_headings, self._everything = with_headings, everything
        self._outputs: dict[str, OwnOutput] = {}
        self._last = ""

    @property
    def hidden(self) -> int:
        """The number of lines that were left out, because the steps did not write them themselves."""
        return sum(output.hidden for output in self._outputs.values())

    def of(self, stage: StageState, node: str, lines: Sequence[str]) -> Iterator[str]:
        """Yield the lines of a node, with a heading where another stage begins."""
        if not self._everything:
            lines = self._outputs.setdefault(node, OwnOutput()).of(lines)
        if not lines:
            return
        if self._with_headings and stage.place != self._last:
            yield f"== {stage.title}"
        self._last, self.is_empty = stage.place, False
        yield "\n".join(lines)


def _no_log(run: Run, logs: StepLogs) -> NoLog:
    if logs.trouble:
        return NoLog(
            f"no log of run {run.id}: Kubeflow Pipelines has none, and the cluster cannot be asked ({logs.trouble})"
        )
    return NoLog(f"no log of run {run.id} yet: see `kubetrain status {run.id}`")


class OwnOutput:
    """Selects the lines of one log, which arrive in order."""

    def __init__(self) -> None:
        self.hidden = 0
        self._is_in_json = False

    def of(self, lines: Iterable[str]) -> list[str]:
        return [line for line in lines if not self._is_around(line)]

    def _is_around(self, line: str) -> bool:
        if self._is_in_json and line[:1] in (" ", "{", "}"):
            self._is_in_json = line.rstrip("\n") != "}"
            is_around = True
        else:
            is_around = AROUND.match(line) is not None
            self._is_in_json = is_around and OPENS_JSON.match(line.rstrip("\n")) is not None
        self.hidden += is_around
        return is_around
