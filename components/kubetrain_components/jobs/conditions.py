"""The conditions of a job in the cluster."""

from typing import Any

from kubetrain_components.manifest import Manifest

OF_RAY = {
    "Running": "Running",
    "Complete": "Complete",
    "Failed": "Failed",
    "ValidationFailed": "Failed",
    "Suspended": "Suspended",
}
"""Conditions by a RayJob's jobDeploymentStatus."""


def conditions_of(job: Manifest) -> list[dict[str, Any]]:
    """Return the conditions. A RayJob has none but a status, which calls a job complete that somebody stopped."""
    status = job.get("status") or {}
    if "jobDeploymentStatus" not in status:
        return status.get("conditions") or []
    kind = OF_RAY.get(status["jobDeploymentStatus"], "")
    if kind == "Complete" and status.get("jobStatus") != "SUCCEEDED":
        kind = "Failed"
    ended = {"lastTransitionTime": status["endTime"]} if status.get("endTime") else {}
    return [{"type": kind, "status": "True", "message": status.get("message", ""), **ended}] if kind else []
