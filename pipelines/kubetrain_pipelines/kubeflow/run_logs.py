"""`kubetrain logs`: print the logs of a run's steps, and with --follow keep printing until the run ends."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run, find_run, read_run, titles_of
from kubetrain_pipelines.kubeflow.step_logs import NoLog, StepLog, logs_of
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

POLL_SECONDS = 2.0


def logs_and_show(api: KfpApi, wanted: str, stage: str = "", *, follow: bool = False) -> None:
    """
    Args:
        stage: The task or title of one stage; empty for all stages, each with a heading.

    Raises:
        NoLog: if there is none yet, and `follow` is not set.
    """
    message = find_run(api, wanted)
    titles = titles_of(api, message)
    run = Run.of(message, titles)
    task = _task_named(stage, titles, run.id) if stage else ""
    printed = _PrintedLogs({} if task else titles)
    for snapshot in _snapshots(api, run, titles) if follow else [run]:
        with contextlib.suppress(NoLog) if follow else contextlib.nullcontext():
            printed.add(_logs_of_task(api, snapshot, task), _ended_tasks(snapshot))


def _task_named(stage: str, titles: Mapping[str, str], run_id: str) -> str:
    tasks = {name: task for task, title in titles.items() for name in (task, task.replace("-", "_"), title)}
    if stage not in tasks:
        raise InvalidSetting(f"run {run_id} has no stage '{stage}': {did_you_mean(stage, tasks)}")
    return tasks[stage]


def _logs_of_task(api: KfpApi, run: Run, task: str) -> list[StepLog]:
    """Return the logs of one task, or of all if `task` is empty."""
    stages = tuple(stage for stage in run.stages if task in ("", stage.task))
    if logs := [log for log in logs_of(api, replace(run, stages=stages)) if task in ("", log.task)]:
        return logs
    raise NoLog(f"no log of {task or f'run {run.id}'} yet: see `kubetrain status {run.id}`")


def _snapshots(api: KfpApi, run: Run, titles: Mapping[str, str]) -> Iterator[Run]:
    """Yield the run until it ends, each time without the stages that had already ended the last time."""
    done: set[str] = set()
    while True:
        yield replace(run, stages=tuple(stage for stage in run.stages if stage.task not in done))
        if run.state.is_final:
            return
        done = _ended_tasks(run)
        time.sleep(POLL_SECONDS)
        run = read_run(api, run.id, titles)


def _ended_tasks(run: Run) -> set[str]:
    return {stage.task for stage in run.stages if stage.state.is_final or run.state.is_final}


class _PrintedLogs:
    """Prints only new text, because Kubeflow Pipelines always serves logs from their beginning."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        self._titles = titles
        self._lengths: dict[tuple[str, int], int] = {}
        self._last = ""

    def add(self, logs: list[StepLog], ended: set[str]) -> None:
        """
        Args:
            ended: Tasks whose last line is complete, even without a line break.
        """
        attempts: Counter[str] = Counter()
        for log in logs:
            attempts[log.task] += 1
            start = self._lengths.get((log.task, attempts[log.task]), 0)
            end = len(log.text) if log.task in ended else log.text.rfind("\n") + 1
            if end > start:
                self._print(log.task, log.text[start:end])
                self._lengths[log.task, attempts[log.task]] = end

    def _print(self, task: str, text: str) -> None:
        if task in self._titles and task != self._last:
            print(f"== {self._titles[task]}")
        self._last = task
        print(text.removesuffix("\n"), flush=True)
