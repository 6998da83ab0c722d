"""The environment that the Kubeflow Training Operator 1.9.4 sets in a pod, as a pure function.

Job                            | variables
PyTorchJob with a Master       | MASTER_*, WORLD_SIZE, RANK (of the node), PET_* of a static rendezvous
PyTorchJob, elastic, no Master | PET_RDZV_*, PET_NNODES=min:max
PyTorchJob with neither        | rejected: its processes would never find each other
TFJob with two or more pods    | TF_CONFIG
TFJob with one pod             | none
MPIJob                         | those of Open MPI and Intel MPI in the Launcher
XGBoostJob, PaddleJob, JAXJob  | those of its framework, below
TrainJob, batch Job            | none: the manifest has them (manifests/indexed_job.py)
RayJob                         | none that a script needs: Ray Train sets them in its workers
"""

import json
from collections.abc import Callable

from kubetrain_components.jobs.job import UNBUFFERED, Elastic, Job
from kubetrain_components.jobs.job_kinds import JAX, PADDLE, XGBOOST, JobKind
from kubetrain_trainer.errors import InvalidSetting

HostOf = Callable[[int], str]
"""Maps the rank of a pod to its host name."""

AddressOf = Callable[[str, int], tuple[str, int]]
"""Maps the role and index of a pod to the host and port at which other pods reach it."""
OF_MPIRUN = {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"}
"""How mpirun reaches the Workers. The operator sets the variables of Intel MPI only if they are missing."""


def operator_environment(job: Job, role: str, index: int, address_of: AddressOf) -> dict[str, str]:
    match job.kind:
        case JobKind.PYTORCH_JOB:
            return _pytorch(job, role, index, address_of)
        case JobKind.TF_JOB:
            return _tensorflow(job, role, index, address_of)
        case JobKind.MPI_JOB:
            return OF_MPIRUN if role == job.lead_role else {}
        case JobKind.XGBOOST_JOB | JobKind.PADDLE_JOB | JobKind.JAX_JOB:
            return UNBUFFERED | _of_command(job, role, index, address_of)
        case JobKind.TRAIN_JOB | JobKind.BATCH_JOB | JobKind.RAY_JOB:
            return {}


def _pytorch(job: Job, role: str, index: int, address_of: AddressOf) -> dict[str, str]:
    if job.elastic and "Master" in job.roles:
        raise InvalidSetting("an elastic PyTorchJob with a Master counts its nodes wrongly: use Workers only")
    if job.elastic:
        return UNBUFFERED | elastic_rendezvous(job, job.elastic, address_of("Worker", 0))
    if "Master" in job.roles:
        node_rank = index if role == "Master" else index + 1
        return UNBUFFERED | static_rendezvous(job, str(node_rank), address_of("Master", 0))
    raise InvalidSetting("a PyTorchJob with only Workers has no rendezvous: add a Master or an elastic policy")


def _of_command(job: Job, role: str, index: int, address_of: AddressOf) -> dict[str, str]:
    has_master = job.lead_role != "Worker"

    def host_of(rank: int) -> str:
        is_lead = rank == 0 or not has_master
        return address_of(job.lead_role, rank)[0] if is_lead else address_of("Worker", rank - 1)[0]

    rank = index + (has_master and role == "Worker")
    return command_environment(job, str(rank), host_of, address_of(job.lead_role, 0)[1])


def static_rendezvous(job: Job, node_rank: str, lead: tuple[str, int]) -> dict[str, str]:
    """Return what torchrun reads for nodes of known ranks, and what a process of each node reads without it.

    Args:
        lead: Host and port of the node with rank 0.
    """
    host, port = lead
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(job.total_replicas * job.processes_per_replica),
        "RANK": node_rank,
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
        "PET_NODE_RANK": node_rank,
        "PET_NPROC_PER_NODE": str(job.processes_per_replica),
        "PET_NNODES": str(job.total_replicas),
    }


def elastic_rendezvous(job: Job, elastic: Elastic, lead: tuple[str, int]) -> dict[str, str]:
    """Return what torchrun reads for nodes that find their ranks through the first of them."""
    host, port = lead
    conf = ",".join(f"{key}={value}" for key, value in elastic.rdzv_conf.items())
    optional = {
        "PET_MAX_RESTARTS": "" if elastic.max_restarts is None else str(elastic.max_restarts),
        "PET_RDZV_ID": elastic.rdzv_id,
        "PET_RDZV_CONF": conf,
    }
    return {
        "PET_NPROC_PER_NODE": str(job.processes_per_replica),
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
        "PET_RDZV_BACKEND": elastic.rdzv_backend,
        "PET_NNODES": f"{elastic.min_replicas}:{elastic.max_replicas}",
        **{name: value for name, value in optional.items() if value},
    }


def _tensorflow(job: Job, role: str, index: int, address_of: AddressOf) -> dict[str, str]:
    if job.total_replicas == 1:
        return {}
    cluster = {
        name.lower(): ["{}:{}".format(*address_of(name, item)) for item in range(count)]
        for name, count in sorted(job.roles.items())
    }
    config = {"cluster": cluster, "task": {"type": role.lower(), "index": index}, "environment": "cloud"}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def command_environment(job: Job, rank: str, host_of: HostOf, port: int) -> dict[str, str]:
    variables = VARIABLES.get(job.trains_with)
    return variables(job, rank, host_of, port) if variables else {}


def _xgboost(job: Job, rank: str, host_of: HostOf, port: int) -> dict[str, str]:
    """Return the variables; LightGBM reads those of the workers."""
    size = job.total_replicas
    workers = ",".join(host_of(item) for item in range(1, size))
    return {
        "MASTER_ADDR": host_of(0),
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "RANK": rank,
        **({"WORKER_ADDRS": workers, "WORKER_PORT": str(port)} if workers else {}),
    }


def _paddle(job: Job, rank: str, host_of: HostOf, port: int) -> dict[str, str]:
    return {
        "PADDLE_MASTER": f"{host_of(0)}:{port}",
        "PADDLE_NNODES": str(job.total_replicas),
        "PADDLE_JOB_ID": job.identity.name,
    }


def _jax(job: Job, rank: str, host_of: HostOf, port: int) -> dict[str, str]:
    return {
        "COORDINATOR_ADDRESS": host_of(0),
        "COORDINATOR_PORT": str(port),
        "NUM_PROCESSES": str(job.total_replicas),
        "PROCESS_ID": rank,
    }


VARIABLES = {XGBOOST: _xgboost, PADDLE: _paddle, JAX: _jax}
