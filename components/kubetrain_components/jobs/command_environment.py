"""The environment by which the pods of other frameworks find each other, under the names of Training Operator 1.9.4.

Every launcher sets the same, so that a program runs with each of them. The pods of MPI need none: mpirun starts the
processes.
"""

from collections.abc import Callable

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import JAX, PADDLE, XGBOOST

HostOf = Callable[[int], str]
"""Maps the rank of a pod to its host name."""


def command_environment(job: Job, rank: str, host_of: HostOf, port: int) -> dict[str, str]:
    variables = VARIABLES.get(job.trains_with)
    return variables(job, rank, host_of, port) if variables else {}


def _xgboost(job: Job, rank: str, host_of: HostOf, port: int) -> dict[str, str]:
    """Return the variables; LightGBM reads those of the workers."""
    size = job.total_replicas
    workers = ",".join(host_of(each) for each in range(1, size))
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
