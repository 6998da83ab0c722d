"""A training as a TrainJob of Kubeflow Trainer, version 2.2 or later, with a runtime of its own.

Administrators provide runtimes for others. A TrainJob can change only part of the pods of a runtime, and not their
network or priority, so each job has its own TrainingRuntime, which holds the whole template.
"""

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import TRAINER_API
from kubetrain_components.jobs.kubernetes.indexed_environment import indexed_environment
from kubetrain_components.jobs.kubernetes.indexed_job import pods_of, service_name
from kubetrain_components.manifest import Manifest

NODE = "node"
STEP_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the pods that Trainer counts as the training."""


def train_job(job: Job, instance: str) -> Manifest:
    """Return the spec of the TrainJob."""
    return {
        "runtimeRef": {
            "apiGroup": TRAINER_API.split("/")[0],
            "kind": "TrainingRuntime",
            "name": service_name(job, instance),
        },
        "trainer": {
            "numNodes": job.total_replicas,
            **({"numProcPerNode": job.processes_per_replica} if _has_policy(job) else {}),
        },
        **({"suspend": True} if job.placement.scheduler == "kueue" else {}),
    }


def runtime(job: Job, instance: str) -> Manifest:
    """Return the TrainingRuntime. Its JobSet never restarts: pods restart in their Job, and the launcher retries."""
    name = job.identity.name
    environment = [] if _has_policy(job) else indexed_environment(job, lambda index: f"{name}-{NODE}-0-{index}.{name}")
    pods = pods_of(job, instance, environment)
    nodes = {"name": NODE, "template": {"metadata": {"labels": STEP_LABEL}, "spec": pods}}
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainingRuntime",
        "metadata": {"name": service_name(job, instance)},
        "spec": {
            "mlPolicy": {"numNodes": job.total_replicas, **({"torch": {}} if _has_policy(job) else {})},
            "template": {"spec": {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": [nodes]}},
        },
    }


def _has_policy(job: Job) -> bool:
    """Return True if Trainer's policy for torchrun sets the environment: it knows one port, and no minimum of pods."""
    return job.framework == "pytorch" and job.elastic is None and not job.placement.host_network
