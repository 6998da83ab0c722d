"""The remedy for a pod that a cluster refuses to create, and the pod of the launch step. Pure functions."""

from decimal import Decimal

from kubetrain_components.jobs.refusals import fix_of_refusal
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.deploy_files import apply_command, default_requests
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, warning

LAUNCH_STEP_QUOTA = {
    "pods": Decimal(1),
    "requests.cpu": Decimal("0.1"),
    "limits.cpu": Decimal("0.5"),
    "limits.memory": Decimal(256 << 20),
}
"""The pod uses at least this much of a quota: the resources of its init container in Kubeflow Pipelines 2.17.

No other pod of the run's steps exists at the same time as the training.
"""
LAUNCH_STEP_LIMITS = {"cpu": "2", "memory": "2Gi"}


def judge_refusal(refusal: str, namespace: str) -> Finding:
    message = refusal.partition(": ")[2] or refusal  # without the request
    return missing(message, fix_of_refusal(message, namespace))


def launch_step_spec(account: str, image: str) -> Manifest:
    restricted = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "serviceAccountName": account,
        "containers": [{"name": "main", "image": image, "command": ["true"], "securityContext": restricted}],
    }


def judge_launch_step(created: Manifest, namespace: str) -> Finding:
    """
    Args:
        created: The pod as the server would create it.
    """
    (container,) = created["spec"]["containers"]
    requests = (container.get("resources") or {}).get("requests") or {}
    if "memory" in requests:
        return ok(f"the cluster would create this pod, with a memory request of {requests['memory']}")
    return warning(
        "the launch step's pod has no memory request: a node out of memory evicts it first, and the run fails",
        apply_command([default_requests()], namespace),
    )


def judge_refused_launch_step(refusal: Finding, namespace: str) -> Finding:
    """Return the finding of a refused pod, with the remedy if a quota requires requests or limits."""
    if "must specify" not in refusal.evidence:
        return refusal
    defaults = default_requests()
    if "limits." in refusal.evidence:
        defaults["spec"]["limits"][0]["default"] = LAUNCH_STEP_LIMITS
    return missing(refusal.evidence, apply_command([defaults], namespace))
