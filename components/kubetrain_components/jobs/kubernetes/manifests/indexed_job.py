"""The spec of an Indexed Job, whose pods have numbers and stable names: Kubernetes alone runs a training by it."""

import json
from collections.abc import Callable, Mapping, Sequence

from kubetrain_components.jobs.annotations import LABEL_PREFIX
from kubetrain_components.jobs.job import Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS, INDEX_LABEL, PADDLE
from kubetrain_components.jobs.kubernetes.manifests.etcd import rendezvous_of
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template, rendezvous_port
from kubetrain_components.jobs.operator_environment import command_environment, elastic_rendezvous, static_rendezvous
from kubetrain_components.manifest import Manifest

INDEX = "JOB_COMPLETION_INDEX"
REFERENCE = f"$({INDEX})"
INDEX_ANNOTATION = INDEX_LABEL

HostOf = Callable[[int | str], str]
"""Maps the index of a pod, or a reference to it, to its host name."""

INSTANCE_LABEL = LABEL_PREFIX + "instance"
"""Random label of one creation of a job, its pods, and what belongs to it."""
NEEDED_ANNOTATION = LABEL_PREFIX + "needed-pods"
"""Number of pods that must have started for the job to be under way."""
NEEDS_FIRST_ANNOTATION = LABEL_PREFIX + "needs-first-pod"
"""It is "false" if the job can be under way without its first pod."""
UNLIMITED = 2**31 - 1
OTHER_EXIT_CODES = [0, *range(128, 256)]
"""Exit codes after which restart_policy ExitCode restarts a pod, and success."""


def indexed_job(job: Job, instance: str) -> Manifest:
    """Return the spec of a batch Job that runs the training."""
    (replica,) = job.replicas
    service = service_name(job, instance)
    environment = indexed_environment(job, lambda index: f"{job.identity.name}-{index}.{service}", instance)
    return {
        **pods_of(job, replica, instance, environment, {"subdomain": service}),
        "completions": job.total_replicas,
        "parallelism": job.total_replicas,
        **({"ttlSecondsAfterFinished": job.placement.ttl_seconds} if job.placement.ttl_seconds else {}),
        **({"suspend": True} if job.placement.scheduler == "kueue" else {}),
    }


def pods_of(
    job: Job, replica: Replica, instance: str, environment: Sequence[Manifest] = (), spec: Manifest | None = None
) -> Manifest:
    """Return the part of the spec without the number of pods."""
    policy = replica.restart_policy
    restarts = "OnFailure" if policy is RestartPolicy.ON_FAILURE else "Never"
    template = pod_template(job, replica, environment, {"restartPolicy": restarts, **(spec or {})})
    template["metadata"]["labels"] |= instance_label(instance)
    return {
        "completionMode": "Indexed",
        # The launcher counts restarts, because this limit counts those that follow a lost node as well.
        "backoffLimit": 0 if policy is RestartPolicy.NEVER else UNLIMITED,
        "podReplacementPolicy": "Failed",  # two pods must not have one name
        **({"podFailurePolicy": _permanent_failures(job)} if policy is RestartPolicy.EXIT_CODE else {}),
        # A pod that joins when the others have ended may never end.
        **({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}} if job.elastic else {}),
        "template": template,
    }


def _permanent_failures(job: Job) -> Manifest:
    by_code = {"containerName": job.kind.traits.container, "operator": "NotIn", "values": OTHER_EXIT_CODES}
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": disrupted},
            {"action": "FailJob", "onExitCodes": by_code},
        ]
    }


def service(job: Job, instance: str) -> Manifest:
    """Return the Service by which the pods of an Indexed Job find each other's names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service_name(job, instance)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {job.kind.traits.job_name_label: job.identity.name},
        },
    }


def service_name(job: Job, instance: str) -> str:
    return f"{job.identity.name}-{instance}" if instance else job.identity.name


def instance_label(instance: str) -> dict[str, str]:
    return {INSTANCE_LABEL: instance} if instance else {}


def indexed_environment(job: Job, host_of: HostOf, instance: str = "") -> list[Manifest]:
    """Return the variables. Kubernetes replaces a reference only after the variable that it refers to."""
    index = {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}}
    return [
        index,
        *({"name": name, "value": value} for name, value in sorted(variables(job, host_of, instance).items())),
    ]


def variables(job: Job, host_of: HostOf, instance: str = "") -> Mapping[str, str]:
    lead = (host_of(0), rendezvous_port(job, job.lead_role))
    if job.framework in COMMAND_FRAMEWORKS:
        found = command_environment(job, REFERENCE, host_of, lead[1])
        # Paddle's launcher is the master if it has the master's address.
        return found | ({"POD_IP": host_of(REFERENCE)} if job.framework == PADDLE else {})
    if job.framework == "tensorflow":
        return _tensorflow(job, host_of)
    if job.elastic:
        return elastic_rendezvous(job, *rendezvous_of(job, job.elastic, lead, instance))
    return static_rendezvous(job, REFERENCE, lead)


def _tensorflow(job: Job, host_of: HostOf) -> dict[str, str]:
    """Return a cluster of workers only, of which TensorFlow takes the first as the chief."""
    if job.total_replicas == 1:
        return {}
    port = rendezvous_port(job, job.lead_role)
    workers = [f"{host_of(index)}:{port}" for index in range(job.total_replicas)]
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": REFERENCE}}
    # The reference becomes a number.
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":")).replace(f'"{REFERENCE}"', REFERENCE)}
