"""A finding: what was checked, its status, the evidence, and the remedy."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from kubetrain_trainer.errors import KubetrainError


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Runs may still work."""
    MISSING = "missing"
    UNKNOWN = "unknown"
    """The check could not be made."""
    SKIPPED = "skipped"
    """The check was not requested."""


@dataclass(frozen=True)
class Finding:
    status: Status
    evidence: str
    remedy: str = ""
    """A command, a manifest or a setting."""
    check: str = ""

    def named(self, check: str) -> Self:
        return replace(self, check=check)

    def to_dict(self) -> dict[str, str]:
        return {"verdict": self.status, "evidence": self.evidence, "remedy": self.remedy, "check": self.check}


def ok(evidence: str) -> Finding:
    return Finding(Status.OK, evidence)


def warning(evidence: str, remedy: str = "") -> Finding:
    return Finding(Status.WARNING, evidence, remedy)


def missing(evidence: str, remedy: str) -> Finding:
    return Finding(Status.MISSING, evidence, remedy)


def unknown(reason: str) -> Finding:
    return Finding(Status.UNKNOWN, reason)


def skipped(reason: str) -> Finding:
    return Finding(Status.SKIPPED, reason)


def cluster_missing(error: KubetrainError) -> Finding:
    return missing(str(error), "export KUBECONFIG=FILE\nkubectl version").named("cluster")


def not_made(error: Exception) -> Finding:
    expected = isinstance(error, KubetrainError)
    return unknown(str(error) if expected else f"this check failed unexpectedly: {type(error).__name__}: {error}")
