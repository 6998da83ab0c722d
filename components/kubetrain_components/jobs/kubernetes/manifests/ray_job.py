"""The spec of a RayJob of KubeRay: a Ray cluster for this training alone, and a Submitter that starts it there.

The user's script runs on the Head. It starts its workers with Ray Train, one or more in each Worker.
"""

from kubetrain_components.jobs.annotations import APP_LABEL
from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import INDEX_ANNOTATION, instance_label
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.jobs.quantity import amount
from kubetrain_components.manifest import Manifest

SUBMITTER = {"cpu": "500m", "memory": "1Gi"}
HEALTH = {"Head": (8265, "/api/gcs_healthz"), "Worker": (52365, "/api/local_raylet_healthz")}
"""Ports and paths of the health checks, by role; KubeRay's own need wget in the image."""


def ray_job(job: Job, instance: str) -> Manifest:
    submitter, head, worker = job.replicas
    return {
        "submitterPodTemplate": _template(job, submitter, 0, instance),
        "submitterConfig": {"backoffLimit": 0},
        "backoffLimit": 0,  # the launcher decides about another attempt
        "shutdownAfterJobFinishes": True,  # otherwise KubeRay creates the pods again that the launcher deletes
        "rayClusterSpec": {
            "headGroupSpec": {
                "rayStartParams": {**_start_params(job), "num-cpus": "0"},  # no worker of the training runs there
                "template": _template(job, head, 0, instance),
            },
            # A group for each Worker, so that a pod has the number of the one that it replaces.
            "workerGroupSpecs": [_group(job, worker, index, instance) for index in range(worker.count)],
        },
    }


def _group(job: Job, worker: Replica, index: int, instance: str) -> Manifest:
    return {
        "groupName": f"worker-{index}",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "rayStartParams": _start_params(job),
        "template": _template(job, worker, index, instance),
    }


def _start_params(job: Job) -> dict[str, str]:
    """Leave half of the shared memory to what else uses it: by default, Ray takes 30% of the node's memory."""
    size = job.placement.shm_size
    return {"object-store-memory": str(int(amount(size) / 2))} if size else {}


def _template(job: Job, replica: Replica, index: int, instance: str) -> Manifest:
    template = pod_template(job, replica, spec={"restartPolicy": "Never"})
    metadata, container = template["metadata"], template["spec"]["containers"][0]
    metadata["labels"] |= {job.kind.traits.job_name_label: job.identity.name, **instance_label(instance)}
    metadata["annotations"] |= {INDEX_ANNOTATION: str(index)}
    if replica.role == "Submitter":
        container["resources"] = {"requests": SUBMITTER, "limits": SUBMITTER}
    if replica.role == "Head":
        metadata["labels"].pop(APP_LABEL + "name", None)  # KubeRay's Service finds the Head by its own
    if replica.role in HEALTH:
        port, path = HEALTH[replica.role]
        container["readinessProbe"] = {"httpGet": {"port": port, "path": path}, "timeoutSeconds": 5}
        container["livenessProbe"] = {**container["readinessProbe"], "initialDelaySeconds": 30, "failureThreshold": 24}
    return template
