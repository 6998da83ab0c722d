"""A local job's folder: what is on record of it, for whoever looks from this process or from another.

job.json           what it is, and the process that it lives with
state.json         what is known of it
annotations.json
*.log              what its pods print; *.termination their last words
delete             it is to be stopped and forgotten
"""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil

from kubetrain_components.jobs.backend import JobExists
from kubetrain_components.jobs.job import Job, JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_trainer.durable_files import read_json, write_json


class LocalRecord:
    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, job: Job, handle: JobHandle) -> None:
        """Make the folder, whole from the moment that it has its name.

        Raises:
            JobExists: where a job of this name is over, or lives.
        """
        draft = LocalRecord(self.path.with_name(f".{handle.uid}"))
        draft.path.mkdir(parents=True)
        draft.write_state(Phase.PENDING, job.pods())
        write_json(draft.path / "annotations.json", job.identity.annotations())
        owner = psutil.Process()
        made = {"uid": handle.uid, "labels": job.labels, "owner": {"pid": owner.pid, "started": owner.create_time()}}
        write_json(draft.path / "job.json", {**made, "job": asdict(job)})
        with self._locked():
            if self.is_alive():
                draft.remove()
                raise JobExists(f"job {handle.name} exists already")
            self.remove()
            draft.path.rename(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Of two launchers that find a dead job only one may put its own in the place."""
        with (self.path.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def is_alive(self) -> bool:
        """Whether the job is over, or its launcher lives."""
        try:
            owner = read_json(self.path / "job.json")["owner"]
            if Phase(read_json(self.path / "state.json")["phase"]).is_final:
                return True
            return bool(psutil.Process(owner["pid"]).create_time() == owner["started"])
        except (OSError, ValueError, psutil.NoSuchProcess):
            return False

    def state(self) -> JobState | None:
        try:
            made, known = read_json(self.path / "job.json"), read_json(self.path / "state.json")
            annotations = read_json(self.path / "annotations.json")
        except (OSError, ValueError):
            return None  # removed while it was read
        return JobState(
            handle=JobHandle(kind=JobKind(made["job"]["kind"]), name=self.path.name, uid=made["uid"]),
            phase=Phase(known["phase"]),
            pods=tuple(PodState(**{**pod, "phase": Phase(pod["phase"])}) for pod in known["pods"]),
            labels=made["labels"],
            annotations=annotations,
            message=known["message"],
            is_deleting=self.is_asked_to_stop(),
        )

    def write_state(self, phase: Phase, pods: Sequence[PodState], message: str = "") -> None:
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            write_json(
                self.path / "state.json", {"phase": phase, "message": message, "pods": [asdict(pod) for pod in pods]}
            )

    def annotate(self, values: Mapping[str, str]) -> None:
        path = self.path / "annotations.json"
        write_json(path, {**read_json(path), **values})

    def ask_to_stop(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self.path / "delete").touch()

    def is_asked_to_stop(self) -> bool:
        return (self.path / "delete").exists()

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
