"""Jobs on this machine: pods are processes, and a thread acts as their operator and kubelet.

A local job ends with its launcher: if the launcher dies before the job is over, the job counts as gone.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_state import JobHandle, JobState, JobTimes, LogLine
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.local.operator import LocalOperator, pod_environments
from kubetrain_components.jobs.local.process_guard import process_guard
from kubetrain_components.jobs.local.record import LocalRecord
from kubetrain_components.jobs.verdict import KEPT_LINES
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.resources import usable_cpus

POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 1.0
BLOCK_BYTES = 2**20
TAIL_BYTES = 64 << 10


class LocalBackend:
    """A context manager that ends all processes of all jobs on exit."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cleanup = contextlib.ExitStack()
        self._guard_mark: dict[str, str] = {}
        self._operators: dict[str, LocalOperator] = {}
        """Operators of the jobs that this process created, by name."""

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KubetrainError(
                f"cannot write to {self._directory} ({error.strerror}): choose a writable folder"
            ) from error
        self._guard_mark = self._cleanup.enter_context(process_guard())
        return self

    def __exit__(self, *unused: object) -> None:
        self._cleanup.close()

    def launcher(self, wanted: Launcher, framework: str, identity: JobIdentity) -> tuple[Launcher, str]:
        return Launcher.TRAINING_OPERATOR, "this machine runs pods as that operator does"

    def find(self, job: Job) -> JobState | None:
        return self._state_named(job.identity.name)

    def attempts(self, job: Job) -> list[str]:
        return [path.name for path in self._directory.glob("*") if LocalRecord(path).is_alive()]

    def unended_pods(self, job: Job) -> list[str]:
        """Return none: a local job is gone when its processes are."""
        return []

    def create(self, job: Job) -> JobHandle:
        environments = pod_environments(job, pod_shares(job, usable_cpus(), visible_gpus()), self._guard_mark)
        handle = JobHandle(kind=job.kind, name=job.identity.name, uid=uuid.uuid4().hex)
        record = LocalRecord(self._directory / handle.name)
        with interrupts_deferred():  # a record without an operator would look like a running job
            record.create(job, handle)
            operator = self._operators[handle.name] = LocalOperator(job, record, environments)
            self._cleanup.callback(operator.stop)
            operator.start()
        return handle

    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        seen: JobState | None = None
        last_report = 0.0
        while (state := self._state_of(handle)) is not None:
            if state != seen or time.monotonic() - last_report >= HEARTBEAT_SECONDS:
                seen, last_report = state, time.monotonic()
                yield state
            time.sleep(POLL_SECONDS)
        yield None

    def read(self, handle: JobHandle) -> JobState | None:
        return self._state_of(handle)

    def logs(self, handle: JobHandle, only: str = "") -> Iterator[LogLine]:
        tails: dict[str, _Tail] = {}
        while True:
            state = self._state_of(handle)
            is_last_read = state is None or state.is_over
            for path in sorted((self._directory / handle.name).glob("*.log")):
                yield from tails.setdefault(path.stem, _Tail(path)).new_lines(is_last_read)
            if is_last_read:
                return
            if not any(tail.has_more for tail in tails.values()):
                time.sleep(POLL_SECONDS)

    def last_lines(self, handle: JobHandle, pod: str) -> list[str]:
        with contextlib.suppress(OSError), (self._directory / handle.name / f"{pod}.log").open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
            return file.read().decode(errors="replace").splitlines()[-KEPT_LINES:]
        return []

    def times(self, job: Job) -> JobTimes:
        """Return the times of this process's attempts: a job ends with the launcher that created it."""
        own = (each for name, each in self._operators.items() if job.identity.has_attempt(name))
        pods = tuple(pod for operator in own for pod in operator.pod_times())
        return JobTimes(created=min((pod.created for pod in pods), default=0.0), pods=pods)

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> bool:
        with contextlib.suppress(OSError):
            if self._state_of(handle) is not None:
                LocalRecord(self._directory / handle.name).annotate(values)
            return True
        return False

    def note(self, handle: JobHandle, values: Mapping[str, str]) -> None:
        self.annotate(handle, values)

    def clean(self, handle: JobHandle) -> None:
        """Do nothing: a local job that is over leaves nothing behind."""

    def delete(self, handle: JobHandle) -> None:
        self.fail(handle, "")

    def fail(self, handle: JobHandle, reason: str) -> None:
        record = LocalRecord(self._directory / handle.name)
        while (state := self._state_of(handle)) is not None:
            if state.is_over:
                record.retire(reason)
            elif (operator := self._operators.get(handle.name)) is not None:
                operator.stop(reason)  # on a full disk, the request could not be written
            else:
                record.request_stop(reason)
                time.sleep(POLL_SECONDS)

    def run_outlives_launcher(self) -> bool:
        return False

    def leave(self, handle: JobHandle) -> None:
        """Do nothing: a local job ends with its launcher."""

    def adopt(self, job: JobState) -> None:
        """Do nothing: no launcher left it."""

    def _state_named(self, name: str) -> JobState | None:
        record, operator = LocalRecord(self._directory / name), self._operators.get(name)
        return record.state(operator.unwritten if operator else None) if record.is_alive() else None

    def _state_of(self, handle: JobHandle) -> JobState | None:
        state = self._state_named(handle.name)
        return state if state is not None and state.handle == handle else None


class _Tail:
    """Complete new lines of a growing file, read a block at a time: a program may write gigabytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""
        self.has_more = False

    def new_lines(self, is_last_read: bool) -> Iterator[LogLine]:
        self.has_more = True
        while self.has_more:
            data = self._next_block()
            self.has_more = len(data) == BLOCK_BYTES
            *lines, self._rest = (self._rest + data).split(b"\n")
            if is_last_read and self._rest and not self.has_more:
                lines, self._rest = [*lines, self._rest], b""
            for line in lines:
                yield LogLine(self._path.stem, line.decode(errors="replace").rstrip("\r"))
            if not is_last_read:
                return

    def _next_block(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(BLOCK_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data


def pod_shares(job: Job, cpus: int, gpus: Sequence[str]) -> dict[tuple[str, int], dict[str, str]]:
    """Return the variables for CPU threads and GPUs of each pod, by its role and index.

    If there are fewer GPUs than processes, no pod gets one: two NCCL ranks cannot share a GPU.
    """
    threads = max(1, cpus // (job.total_replicas * job.processes_per_replica))
    gpus_each = len(gpus) // job.total_replicas
    gpus_each = gpus_each if gpus_each >= job.processes_per_replica else 0
    return {
        (pod.role, pod.index): {
            "OMP_NUM_THREADS": str(threads),
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus[number * gpus_each :][:gpus_each])} if gpus else {}),
        }
        for number, pod in enumerate(job.pods())
    }


def visible_gpus(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs as CUDA numbers them."""
    if (chosen := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [word.strip() for word in chosen.split(",") if word.strip()]
    return [str(number) for number in range(len(list(devices.glob("nvidia[0-9]*"))))]
