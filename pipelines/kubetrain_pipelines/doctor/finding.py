"""A finding: what was looked at, how it is, what shows that, and what supplies what is missing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from kubetrain_trainer.errors import KubetrainError


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Runs can do without, or may have to."""
    MISSING = "missing"
    UNKNOWN = "unknown"
    """Which is never ok."""
    SKIPPED = "skipped"
    """Nobody asked for it."""


@dataclass(frozen=True)
class Finding:
    verdict: Verdict
    evidence: str
    remedy: str = ""
    """A command, a manifest, or what to set."""
    check: str = ""


def ok(evidence: str) -> Finding:
    return Finding(Verdict.OK, evidence)


def warning(evidence: str, remedy: str = "") -> Finding:
    return Finding(Verdict.WARNING, evidence, remedy)


def missing(evidence: str, remedy: str) -> Finding:
    return Finding(Verdict.MISSING, evidence, remedy)


def unknown(reason: str) -> Finding:
    return Finding(Verdict.UNKNOWN, f"unknown, because {reason}")


def skipped(reason: str) -> Finding:
    return Finding(Verdict.SKIPPED, reason)


def attempt(check: str, find: Callable[[], Finding]) -> Finding:
    """What cannot be read makes one finding unknown, and the rest goes on."""
    try:
        return replace(find(), check=check)
    except KubetrainError as error:
        return replace(unknown(str(error)), check=check)
