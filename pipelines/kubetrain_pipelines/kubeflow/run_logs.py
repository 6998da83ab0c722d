"""`kubetrain logs`: print what a run's steps wrote, and with --follow keep printing until the run ends."""

import sys
from collections.abc import Mapping, Sequence

from kubetrain_pipelines.kubeflow.follow_logs import FollowedLogs
from kubetrain_pipelines.kubeflow.follow_run import snapshots
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.own_output import OwnOutput
from kubetrain_pipelines.kubeflow.run import Run, find_run, titles_of
from kubetrain_pipelines.kubeflow.stage_state import StageState
from kubetrain_pipelines.kubeflow.step_logs import NoLog, StepLogs
from kubetrain_trainer.errors import InvalidSetting, did_you_mean


def logs_and_show(api: KfpApi, wanted: str, stage: str = "", *, follow: bool = False, everything: bool = False) -> None:
    """
    Args:
        stage: The task or title of one stage; empty for all stages, each with a heading.
        everything: Print also what Kubeflow Pipelines and Argo wrote around the steps.

    Raises:
        NoLog: if there is none yet, and `follow` is not set.
    """
    message = find_run(api, wanted)
    titles = titles_of(api, message)
    run = Run.of(message, titles)
    chosen = _Chosen(stage, run, titles)
    printer = LogPrinter(with_headings=not stage, everything=everything)
    if follow:
        _follow(api, run, titles, chosen, printer)
    else:
        _print_all(api, run, chosen, printer)


class _Chosen:
    """The stages that are printed."""

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


class LogPrinter:
    def __init__(self, *, with_headings: bool, everything: bool) -> None:
        self.is_empty = True
        self._with_headings, self._everything = with_headings, everything
        self._outputs: dict[str, OwnOutput] = {}
        self._last = ""

    @property
    def hidden(self) -> int:
        """The number of lines that were not printed, because the steps did not write them themselves."""
        return sum(each.hidden for each in self._outputs.values())

    def add(self, stage: StageState, node: str, lines: Sequence[str]) -> None:
        """Print the lines of a node, with a heading where another stage begins."""
        if not self._everything:
            lines = self._outputs.setdefault(node, OwnOutput()).of(lines)
        if not lines:
            return
        if self._with_headings and stage.place != self._last:
            print(f"== {stage.title}")
        self._last, self.is_empty = stage.place, False
        print("\n".join(lines), flush=True)


def _print_all(api: KfpApi, run: Run, chosen: _Chosen, printer: LogPrinter) -> None:
    logs = StepLogs(api, run)
    found = [log for log in logs.of(chosen.of(run)) if log.text]
    for log in found:
        printer.add(log.stage, log.node, log.text.removesuffix("\n").split("\n"))
    if not found and logs.trouble:
        raise NoLog(
            f"no log of run {run.id}: Kubeflow Pipelines has none, and the cluster cannot be asked ({logs.trouble})"
        )
    if not found:
        raise NoLog(f"no log of run {run.id} yet: see `kubetrain status {run.id}`")
    if printer.is_empty:
        print(f"the steps themselves wrote nothing: --all prints {printer.hidden} lines of Kubeflow Pipelines")


def _follow(api: KfpApi, run: Run, titles: Mapping[str, str] | None, chosen: _Chosen, printer: LogPrinter) -> None:
    logs = FollowedLogs(api, run)
    for snapshot in snapshots(api, run.id, titles, _say, lambda: logs.pause_seconds):
        for stage in chosen.of(snapshot):
            for node, lines in logs.new_lines(stage, is_over=stage.state.is_final or snapshot.state.is_final):
                printer.add(stage, node, lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
