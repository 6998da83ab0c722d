"""`kubetrain logs`: what the steps of a run wrote so far, or to its end."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kubetrain_pipelines.kubeflow.evidence import NoLog, StepLog, logs_of
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run, find_run, read_run, titles_of
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

POLL_SECONDS = 2.0


def logs_and_show(api: KfpApi, wanted: str, stage: str = "", *, follow: bool = False) -> None:
    """
    Args:
        stage: Its task or title; empty: every stage, each log under its name.

    Raises:
        NoLog: where nothing has been written, and one does not want to wait for it.
    """
    message = find_run(api, wanted)
    titles = titles_of(api, message)
    run = Run.of(message, titles)
    task = _task_named(stage, titles, run.id) if stage else ""
    printed = _PrintedLogs({} if task else titles)
    for now in _until_over(api, run, titles) if follow else [run]:
        with contextlib.suppress(NoLog) if follow else contextlib.nullcontext():
            printed.add(_logs_of_task(api, now, task), _over(now))


def _task_named(stage: str, titles: Mapping[str, str], run_id: str) -> str:
    tasks = {name: task for task, title in titles.items() for name in (task, task.replace("-", "_"), title)}
    if stage not in tasks:
        raise InvalidSetting(f"run {run_id} has no stage '{stage}': {did_you_mean(stage, tasks)}")
    return tasks[stage]


def _logs_of_task(api: KfpApi, run: Run, task: str) -> list[StepLog]:
    """Of every task where none is named."""
    stages = tuple(stage for stage in run.stages if task in ("", stage.task))
    if logs := [log for log in logs_of(api, replace(run, stages=stages)) if task in ("", log.task)]:
        return logs
    raise NoLog(f"there is no log of {task or f'run {run.id}'} yet: see `kubetrain status {run.id}`")


def _until_over(api: KfpApi, run: Run, titles: Mapping[str, str]) -> Iterator[Run]:
    """The run again and again; stages that were over at one look are left out of the next."""
    told: set[str] = set()
    while True:
        yield replace(run, stages=tuple(stage for stage in run.stages if stage.task not in told))
        if run.state.is_final:
            return
        told = _over(run)
        time.sleep(POLL_SECONDS)
        run = read_run(api, run.id, titles)


def _over(run: Run) -> set[str]:
    return {stage.task for stage in run.stages if stage.state.is_final or run.state.is_final}


class _PrintedLogs:
    """The API of Kubeflow Pipelines gives logs from their beginning alone: what is printed is left out here."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles
        self._lengths: dict[tuple[str, int], int] = {}
        self._last = ""

    def add(self, logs: list[StepLog], over: set[str]) -> None:
        """
        Args:
            over: Tasks whose last line, where it has no end, will get none.
        """
        tries: Counter[str] = Counter()
        for log in logs:
            tries[log.task] += 1
            begun = self._lengths.get((log.task, tries[log.task]), 0)
            end = len(log.text) if log.task in over else log.text.rfind("\n") + 1
            if end > begun:
                self._print(log.task, log.text[begun:end])
                self._lengths[log.task, tries[log.task]] = end

    def _print(self, task: str, text: str) -> None:
        if task in self._titles and task != self._last:
            print(f"== {self._titles[task]}")
        self._last = task
        print(text.removesuffix("\n"), flush=True)
