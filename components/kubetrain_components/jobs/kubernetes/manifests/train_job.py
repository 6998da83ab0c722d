"""A training as a TrainJob of Kubeflow Trainer, version 2.2 or later, with a runtime of its own.

Administrators provide runtimes for others. A TrainJob can change only part of the pods of a runtime, and not their
network or priority, so each job has its own TrainingRuntime, which holds the whole template.
"""

from typing import Any

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import TRAINER_API
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import indexed_environment, pods_of, service_name
from kubetrain_components.jobs.mpi_workers import HOME, SSH_PORT
from kubetrain_components.manifest import Manifest

LAUNCHER, NODE = "launcher", "node"
START_SECONDS = 60

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


def mpi_policy(job: Job) -> Manifest:
    """Let the Launcher start processes in its Workers with mpirun, over SSH. Trainer generates the keys and hosts."""
    return {
        "numNodes": job.roles["Worker"],
        "mpi": {
            "mpiImplementation": "OpenMPI",
            "numProcPerNode": job.processes_per_replica,
            "sshAuthMountPath": f"{HOME}/.ssh",
            "runLauncherAsNode": False,
        },
    }


def mpi_job_set(job: Job, instance: str, labels: dict[str, str]) -> Manifest:
    """Return the spec of the JobSet: the Launcher starts when all Workers accept connections, and its end is the job's.

    Args:
        labels: Labels of the pods that Trainer counts as the training, and of which it creates numNodes.
    """
    launcher, worker = job.replicas
    depends_on = {"dependsOn": [{"name": NODE, "status": "Ready"}]}
    return {
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [LAUNCHER]},
        "replicatedJobs": [
            _replicated(NODE, _ready_with_ssh(pods_of(job, worker, instance)), labels),
            {**_replicated(LAUNCHER, pods_of(job, launcher, instance)), **depends_on},
        ],
    }


def _replicated(name: str, spec: Manifest, labels: dict[str, str] | None = None) -> Manifest:
    return {"name": name, "template": {"metadata": {"labels": labels or {}}, "spec": spec}}


def _ready_with_ssh(spec: Manifest) -> Manifest:
    """Let the pods be ready once the server listens. A readiness probe would fill their log."""
    container: dict[str, Any] = spec["template"]["spec"]["containers"][0]
    container["startupProbe"] = {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1, "failureThreshold": START_SECONDS}
    return spec
