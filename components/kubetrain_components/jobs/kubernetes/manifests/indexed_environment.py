"""The environment by which the pods of a training find each other without an operator that knows them.

All pods have one template, so that their variables refer to the index that Kubernetes gives to each.
"""

import json
from collections.abc import Callable, Mapping

from kubetrain_components.jobs.command_environment import command_environment
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS, INDEX_LABEL, PADDLE
from kubetrain_components.jobs.kubernetes.manifests.container_ports import rendezvous_port
from kubetrain_components.jobs.kubernetes.manifests.etcd import rendezvous_of
from kubetrain_components.jobs.operator_environment import elastic_rendezvous, static_rendezvous
from kubetrain_components.manifest import Manifest

INDEX = "JOB_COMPLETION_INDEX"
REFERENCE = f"$({INDEX})"
INDEX_ANNOTATION = INDEX_LABEL

HostOf = Callable[[int | str], str]
"""Maps the index of a pod, or a reference to it, to its host name."""


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
