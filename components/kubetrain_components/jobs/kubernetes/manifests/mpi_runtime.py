"""The runtime of a TrainJob whose Launcher starts processes in its Workers with mpirun, over SSH.

Trainer generates the keys and the list of hosts for pods of these names.
"""

from typing import Any

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import pods_of
from kubetrain_components.jobs.mpi_workers import HOME, SSH_PORT
from kubetrain_components.manifest import Manifest

LAUNCHER, NODE = "launcher", "node"
START_SECONDS = 60


def mpi_policy(job: Job) -> Manifest:
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
