"""A training as a TrainJob of Kubeflow Trainer, version 2.2 or later, with a runtime of its own.

Administrators provide runtimes for others. A TrainJob can change only part of the pods of a runtime, and not their
network or priority, so each job has its own TrainingRuntime, which holds the whole template.
"""

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import TRAINER_API
from kubetrain_components.jobs.kubernetes.manifests.indexed_environment import indexed_environment
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import pods_of, service_name
from kubetrain_components.jobs.kubernetes.manifests.mpi_runtime import LAUNCHER, NODE, mpi_job_set, mpi_policy
from kubetrain_components.manifest import Manifest

NODES = "n"
"""Name of the pods' part of the JobSet. It is short because the names of pods are limited and begin with the job's."""
STEP_LABEL = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
"""Label of the pods that Trainer counts as the training."""


def nodes_name(name: str) -> str:
    """Return the name of the Job that has the pods of a TrainJob."""
    return f"{name}-{NODES}-0"


def names_of_jobs(name: str) -> tuple[str, ...]:
    """Return the names of all Jobs that a TrainJob may have."""
    return (nodes_name(name), *(f"{name}-{part}-0" for part in (LAUNCHER, NODE)))


def train_job(job: Job, instance: str) -> Manifest:
    """Return the spec of the TrainJob."""
    return {
        "runtimeRef": {
            "apiGroup": TRAINER_API.split("/")[0],
            "kind": "TrainingRuntime",
            "name": service_name(job, instance),
        },
        "trainer": {"numNodes": job.roles["Worker"], **_processes(job)},
        **({"suspend": True} if job.placement.scheduler == "kueue" else {}),
    }


def _processes(job: Job) -> Manifest:
    """Set the number of processes of mpirun: Trainer takes 1 in a runtime as the number of GPUs."""
    return {"numProcPerNode": job.processes_per_replica} if job.lead_decides else {}


def runtime(job: Job, instance: str) -> Manifest:
    """Return the TrainingRuntime. Its JobSet never restarts: pods restart in their Job, and the launcher retries.

    It has no policy for torchrun, which knows one port, which nodes may share, and no minimum of pods.
    """
    policy, job_set = (
        (mpi_policy(job), mpi_job_set(job, instance, STEP_LABEL)) if job.lead_decides else _plain(job, instance)
    )
    return {
        "apiVersion": TRAINER_API,
        "kind": "TrainingRuntime",
        "metadata": {"name": service_name(job, instance)},
        "spec": {"mlPolicy": policy, "template": {"spec": {"failurePolicy": {"maxRestarts": 0}, **job_set}}},
    }


def _plain(job: Job, instance: str) -> tuple[Manifest, Manifest]:
    """Return the policy and the spec of the JobSet for pods that are all alike."""
    (replica,), name = job.replicas, job.identity.name
    environment = indexed_environment(job, lambda index: f"{nodes_name(name)}-{index}.{name}", instance)
    nodes = {
        "name": NODES,
        "template": {"metadata": {"labels": STEP_LABEL}, "spec": pods_of(job, replica, instance, environment)},
    }
    return {"numNodes": job.total_replicas}, {"replicatedJobs": [nodes]}
