"""Jobs on this machine: pods are processes, and a thread does for them what the operator and the kubelet would.

A local job lives no longer than its launcher: one whose launcher is gone without a verdict is gone too.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from kubetrain_components.jobs.job import Job, JobHandle, JobState, LogLine
from kubetrain_components.jobs.local.operator import LocalOperator, pod_environments
from kubetrain_components.jobs.local.process_guard import process_guard
from kubetrain_components.jobs.local.record import LocalRecord
from kubetrain_components.jobs.local.resources import pod_shares, visible_gpus
from kubetrain_trainer.cpus import usable_cpus
from kubetrain_trainer.errors import KubetrainError

POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 1.0


class LocalBackend:
    """A context: leaving it ends every process of every job."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cleanup = contextlib.ExitStack()
        self._guard_mark: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KubetrainError(
                f"cannot write to {self._directory} ({error.strerror}): choose a folder that you may write"
            ) from error
        self._guard_mark = self._cleanup.enter_context(process_guard())
        return self

    def __exit__(self, *unused: object) -> None:
        self._cleanup.close()

    def find(self, job: Job) -> JobState | None:
        return self._named(job.identity.name)

    def create(self, job: Job) -> JobHandle:
        environments = pod_environments(job, pod_shares(job, usable_cpus(), visible_gpus()), self._guard_mark)
        handle = JobHandle(kind=job.kind, name=job.identity.name, uid=uuid.uuid4().hex)
        record = LocalRecord(self._directory / handle.name)
        record.claim(job, handle)
        operator = LocalOperator(job, record, environments)
        self._cleanup.callback(operator.stop)
        operator.start()
        return handle

    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        seen: JobState | None = None
        spoke = 0.0
        while (state := self._ours(handle)) is not None:
            if state != seen or time.monotonic() - spoke >= HEARTBEAT_SECONDS:
                seen, spoke = state, time.monotonic()
                yield state
            time.sleep(POLL_SECONDS)
        yield None

    def logs(self, handle: JobHandle) -> Iterator[LogLine]:
        tails: dict[str, _Tail] = {}
        while True:
            state = self._ours(handle)
            is_last_look = state is None or state.is_over
            for path in sorted((self._directory / handle.name).glob("*.log")):
                yield from tails.setdefault(path.stem, _Tail(path)).new_lines(is_last_look)
            if is_last_look:
                return
            time.sleep(POLL_SECONDS)

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> None:
        if self._ours(handle) is not None:
            LocalRecord(self._directory / handle.name).annotate(values)

    def clean(self, handle: JobHandle, pods: str) -> None:
        """Nothing is left of a local job that is over."""

    def delete(self, handle: JobHandle) -> None:
        record = LocalRecord(self._directory / handle.name)
        while (state := self._ours(handle)) is not None:
            if state.is_over:
                record.remove()
            else:
                record.ask_to_stop()
                time.sleep(POLL_SECONDS)

    def run_outlives_launcher(self) -> bool:
        return False  # a local job lives no longer than its launcher

    def _named(self, name: str) -> JobState | None:
        record = LocalRecord(self._directory / name)
        return record.state() if record.is_alive() else None

    def _ours(self, handle: JobHandle) -> JobState | None:
        state = self._named(handle.name)
        return state if state is not None and state.handle == handle else None


class _Tail:
    """New whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self, is_last_look: bool) -> list[LogLine]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if is_last_look and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        return [LogLine(self._path.stem, line.decode(errors="replace").rstrip("\r")) for line in lines]
