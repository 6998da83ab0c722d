"""The state of a run and of its stages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    name: str
    state: str
    """running, succeeded, failed, or another state of Kubeflow Pipelines."""
    seconds: float


@dataclass(frozen=True)
class Status:
    state: str
    """pending, running, succeeded, failed, canceled, or another state of Kubeflow Pipelines."""
    seconds: float
    stages: tuple[Stage, ...]
    """The stages that have started, in that order."""
    causes: tuple[str, ...] = ()
    """One sentence for each failed stage whose cause is known."""
