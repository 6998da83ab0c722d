"""What is known of a failure: logs, and what a job, its pods or the stages of a run report."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.annotations import FAILURE_ANNOTATION
from kubetrain_components.jobs.job_state import JobState, Phase, PodState
from kubetrain_components.jobs.verdict import culprit_of, describe
from kubetrain_trainer.termination import parse_termination_message

ERROR = "error: "
"""Before the sentence of a failure, as in logs."""


class Outcome(StrEnum):
    UNKNOWN = "of unknown outcome"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


OUTCOMES = {Phase.SUCCEEDED: Outcome.SUCCEEDED, Phase.FAILED: Outcome.FAILED}


@dataclass(kw_only=True)
class Case:
    names: list[str] = field(default_factory=list)
    """What is diagnosed: job x, run y."""
    outcome: Outcome = Outcome.UNKNOWN
    logs: dict[str, Path] = field(default_factory=dict)
    """The files, by the names of their sources."""
    statements: list[tuple[str, str]] = field(default_factory=list)
    """Sources, and what they report."""
    documents: dict[str, Any] = field(default_factory=dict)
    """What else was read, by a file name for it."""
    culprits: list[str] = field(default_factory=list)
    """Sources of the pods that failed first."""
    gaps: list[str] = field(default_factory=list)
    """The parts that could not be read, and why."""

    def add_job(self, name: str, state: JobState) -> None:
        self.names.append(f"job {name}")
        self.outcome = OUTCOMES.get(state.phase, Outcome.RUNNING)
        self.statements += _statements(state)
        if (culprit := culprit_of(state.pods)) is not None:
            self.culprits += [culprit.name, f"{culprit.name}.log"]

    def note_gap(self, sentence: str) -> None:
        if sentence not in self.gaps:
            self.gaps.append(sentence)


def _statements(state: JobState) -> Iterator[tuple[str, str]]:
    for pod in state.pods:
        if pod.exit_code or pod.cause:
            yield pod.name, _end_of(pod)
    for trouble in state.troubles:
        yield trouble.subject, trouble.failure
    failure = state.annotations.get(FAILURE_ANNOTATION) or (state.message if state.phase is Phase.FAILED else "")
    if failure:
        yield "the job", f"{ERROR}{failure}"


def _end_of(pod: PodState) -> str:
    error = parse_termination_message(pod.last_words).get("error")
    return f"{ERROR}{error}" if error else describe(pod)
