"""The folder of a local job, through which this process and others share its state.

job.json           its specification, and the process of its launcher
state.json         its phase and its pods
annotations.json
*.log              the output of its pods
*.termination      their termination messages
delete             if present, the job must be stopped and deleted; its content is the failure to keep the logs for
"""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from kubetrain_components.jobs.backend import JobExists
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, Phase, PodState
from kubetrain_trainer.durable_files import read_json, write_json

Status = Mapping[str, Any]
"""The content of state.json."""


def status_of(phase: Phase, pods: Sequence[PodState], message: str = "") -> Status:
    return {"phase": phase, "message": message, "pods": [asdict(pod) for pod in pods]}


def ended(pods: Sequence[PodState]) -> tuple[PodState, ...]:
    """Return the pods of a job that has ended, in which none of them runs anymore."""
    return tuple(pod if pod.phase.is_final else replace(pod, phase=Phase.FAILED) for pod in pods)


class LocalRecord:
    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, job: Job, handle: JobHandle) -> None:
        """Create the complete folder atomically.

        Raises:
            JobExists: if a job of this name is running or over.
        """
        draft = LocalRecord(self.path.with_name(f".{handle.uid}"))
        draft.path.mkdir(parents=True)
        draft.write_state(status_of(Phase.PENDING, job.pods()))
        write_json(draft.path / "annotations.json", job.identity.annotations())
        created = {"uid": handle.uid, "labels": job.labels, "owner": this_process(), "job": asdict(job)}
        write_json(draft.path / "job.json", created)
        with self._locked():
            if self.is_alive():
                draft.remove()
                raise JobExists(f"job {handle.name} already exists")
            self.remove()
            draft.path.rename(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let only one of two launchers replace a dead job."""
        with (self.path.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_alive(self) -> bool:
        """Return True if the job is over or its launcher is alive."""
        try:
            owner = read_json(self.path / "job.json")["owner"]
            if Phase(read_json(self.path / "state.json")["phase"]).is_final:
                return True
            return is_running(owner)
        except (OSError, ValueError):
            return False

    def state(self, unwritten: Status | None = None) -> JobState | None:
        """
        Args:
            unwritten: What its launcher knows, but could not write, because the disk is full.
        """
        try:
            created, status = read_json(self.path / "job.json"), unwritten or read_json(self.path / "state.json")
            annotations = read_json(self.path / "annotations.json")
        except (OSError, ValueError):
            return None  # removed while reading
        return JobState(
            handle=JobHandle(kind=JobKind(created["job"]["kind"]), name=self.path.name, uid=created["uid"]),
            phase=Phase(status["phase"]),
            pods=tuple(PodState(**{**pod, "phase": Phase(pod["phase"])}) for pod in status["pods"]),
            succeeds_with_any=bool(created["job"]["elastic"]),
            labels=created["labels"],
            annotations=annotations,
            message=status["message"],
            is_deleting=self.is_stop_requested(),
        )

    def write_state(self, status: Status) -> None:
        with contextlib.suppress(FileNotFoundError):  # already removed
            write_json(self.path / "state.json", status)

    def annotate(self, values: Mapping[str, str]) -> None:
        path = self.path / "annotations.json"
        write_json(path, {**read_json(path), **values})

    def request_stop(self, failure: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / "delete").write_text(failure)

    def failure_in_request(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.path / "delete").read_text()
        return ""

    def is_stop_requested(self) -> bool:
        return (self.path / "delete").exists()

    def retire(self, failure: str, unwritten: Status | None = None) -> None:
        """Remove the folder. After a failure, keep it under another name, where `kubetrain diagnose` finds the logs."""
        state = self.state(unwritten) if failure else None
        if state is None:
            self.remove()
            return
        kept = LocalRecord(self.path.with_name(f"{self.path.name}.failed"))
        kept.remove()
        self.path.rename(kept.path)  # a copy may not fit onto the disk
        with contextlib.suppress(OSError):  # a full disk must not keep the job from ending
            kept.write_state(status_of(Phase.FAILED, ended(state.pods), failure))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def this_process() -> dict[str, float]:
    process = psutil.Process()
    return {"pid": process.pid, "started": process.create_time()}


def is_running(owner: Mapping[str, float]) -> bool:
    """Return False also for a process that has ended, but that its parent has not waited for yet."""
    try:
        process = psutil.Process(int(owner["pid"]))
        return bool(process.create_time() == owner["started"]) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
