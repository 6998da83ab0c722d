"""Jobs for tests, and a backend in memory."""

import itertools
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar
from weakref import WeakSet

from kubetrain_components.jobs.annotations import SECONDS_RUNNING_ANNOTATION
from kubetrain_components.jobs.avoided_nodes import as_annotation
from kubetrain_components.jobs.backend import JobExists
from kubetrain_components.jobs.job import Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, JobTimes, LogLine, Phase
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest import without_empty


def script(source: str) -> tuple[str, ...]:
    return (sys.executable, "-u", "-c", source)


def job(
    *commands: tuple[str, ...],
    run_id: str = "run-1",
    kind: JobKind = JobKind.TF_JOB,
    policy: RestartPolicy = RestartPolicy.ON_FAILURE,
    backoff_limit: int = 1,
) -> Job:
    """Return a job with one pod for each command, each in its own role: Chief, Worker1, Worker2…"""
    roles = ["Chief", *(f"Worker{number}" for number in range(1, len(commands)))]
    return Job(
        identity=JobIdentity(pipeline="p", stage="launch_training", run_id=run_id),
        kind=kind,
        replicas=tuple(
            Replica(role=role, count=1, command=command, restart_policy=policy)
            for role, command in zip(roles, commands, strict=True)
        ),
        backoff_limit=backoff_limit,
    )


class MemoryBackend:
    """Jobs whose states a test sets."""

    used: ClassVar[WeakSet["MemoryBackend"]] = WeakSet()

    def __init__(self) -> None:
        self.used.add(self)
        self.jobs: dict[str, JobState] = {}
        self.lines: list[LogLine] = []
        self.only = ""
        self.deleted: list[str] = []
        self.cleaned: list[str] = []
        self.left: list[str] = []
        self.is_drained = False
        self._changed = threading.Condition()
        self._uids = itertools.count(1)

    def put(self, state: JobState) -> None:
        with self._changed:
            self.jobs[state.handle.name] = state
            self._changed.notify_all()

    def change(self, name: str, **changes: object) -> None:
        self.put(replace(self.jobs[name], **changes))

    def finish(self, name: str, phase: Phase, **pod_changes: object) -> None:
        pods = tuple(replace(pod, phase=phase, **pod_changes) for pod in self.jobs[name].pods)
        self.change(name, phase=phase, pods=pods)

    @classmethod
    def end_all(cls) -> None:
        """End what still follows a job."""
        for backend in list(cls.used):
            for name in list(backend.jobs):
                backend.vanish(name)

    def vanish(self, name: str) -> None:
        with self._changed:
            self.jobs.pop(name, None)
            self._changed.notify_all()

    def launcher(self, wanted: Launcher, framework: str, identity: JobIdentity) -> tuple[Launcher, str]:
        return Launcher.TRAINING_OPERATOR, "it is in memory"

    def find(self, job: Job) -> JobState | None:
        return self.jobs.get(job.identity.name)

    def attempts(self, job: Job) -> list[str]:
        return list(self.jobs)

    def unended_pods(self, job: Job) -> list[str]:
        return []

    def create(self, job: Job) -> JobHandle:
        handle = JobHandle(kind=job.kind, name=job.identity.name, uid=str(next(self._uids)))
        with self._changed:
            if handle.name in self.jobs:
                raise JobExists(handle.name)
        self.put(
            JobState(
                handle=handle,
                phase=Phase.RUNNING,
                pods=tuple(replace(pod, phase=Phase.RUNNING) for pod in job.pods()),
                labels=job.labels,
                annotations={
                    **job.identity.annotations(),
                    **as_annotation(job.avoided_nodes),
                    **without_empty({SECONDS_RUNNING_ANNOTATION: job.seconds_running}),
                },
            )
        )
        return handle

    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        seen: JobState | None = None
        while True:
            with self._changed:
                state = self._ours(handle)
                if state is not None and state == seen:
                    self._changed.wait(0.05)
                    state = self._ours(handle)
            seen = state
            yield state
            if state is None:
                return

    def read(self, handle: JobHandle) -> JobState | None:
        return self._ours(handle)

    def logs(self, handle: JobHandle, only: str = "") -> Iterator[LogLine]:
        self.only = only
        while (state := self._ours(handle)) is not None and not state.is_over:
            time.sleep(0.01)
        yield from self.lines

    def last_lines(self, handle: JobHandle, pod: str) -> list[str]:
        return []

    def times(self, job: Job) -> JobTimes:
        return JobTimes()

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> bool:
        if (state := self._ours(handle)) is not None:
            self.change(handle.name, annotations={**state.annotations, **values})
        return True

    def note(self, handle: JobHandle, values: Mapping[str, str]) -> None:
        self.annotate(handle, values)

    def clean(self, handle: JobHandle) -> None:
        self.cleaned.append(handle.name)

    def run_outlives_launcher(self) -> bool:
        return self.is_drained

    def leave(self, handle: JobHandle) -> None:
        self.left.append(handle.name)

    def adopt(self, job: JobState) -> None:
        self.left = [name for name in self.left if name != job.handle.name]

    def delete(self, handle: JobHandle) -> None:
        if self._ours(handle) is not None:
            self.deleted.append(handle.name)
            self.vanish(handle.name)

    def fail(self, handle: JobHandle, reason: str) -> None:
        self.delete(handle)

    def _ours(self, handle: JobHandle) -> JobState | None:
        state = self.jobs.get(handle.name)
        return state if state is not None and state.handle == handle else None
