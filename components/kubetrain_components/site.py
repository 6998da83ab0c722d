"""Where a step runs, and with which adapters: the one place that wires them.

The paths of a local run reach its steps through the environment: kfp.local rewrites the text "python3" in arguments.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubetrain_components.events import EventLog
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.stage import Stage, running_stage
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.training_output import TrainingOutput

WORKSPACE_VARIABLE = "KUBETRAIN_WORKSPACE"


@dataclass(frozen=True)
class Site:
    """This machine, with a workspace that stands for the cluster's claims."""

    workspace: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Site":
        if WORKSPACE_VARIABLE not in environment:
            raise KubetrainError(
                "this version runs its pipelines on one machine only: start them with `kubetrain run`, "
                f"which sets {WORKSPACE_VARIABLE}"
            )
        return cls(Path(environment[WORKSPACE_VARIABLE]))

    @property
    def staging(self) -> Path:
        return self.workspace / "staging"

    def output(self, run_id: str) -> TrainingOutput:
        return TrainingOutput(self.workspace / "output" / run_id)

    def dataset(self, digest: str) -> Path:
        """Where a training pod finds the dataset version."""
        return self.staging / "versions" / digest / "data"

    @contextlib.contextmanager
    def backend(self) -> Iterator[JobBackend]:
        from kubetrain_components.jobs.local_backend import LocalBackend

        with LocalBackend(self.workspace / "jobs") as backend:
            yield backend

    @contextlib.contextmanager
    def stage(self, name: str, run_id: str) -> Iterator[Stage]:
        with running_stage(name, run_id, EventLog(self.workspace / "events.jsonl")) as stage:
            yield stage
