"""The exact environment that the training operator sets, in every mode in which it starts pods."""

import pytest

from kubetrain_components.jobs.job import Elastic, Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.operator_environment import operator_environment
from kubetrain_trainer.errors import InvalidSetting


def cluster_address(role: str, index: int) -> tuple[str, int]:
    return f"job-{role.lower()}-{index}", 23456


def service_address(role: str, index: int) -> tuple[str, int]:
    return f"job-{role.lower()}-{index}.team.svc", 2222


def job(kind: JobKind, processes: int = 1, elastic: Elastic | None = None, **roles: int) -> Job:
    return Job(
        identity=JobIdentity(pipeline="p", stage="s", run_id="r"),
        kind=kind,
        replicas=tuple(Replica(role=role, count=count, command=("x",)) for role, count in roles.items()),
        processes_per_replica=processes,
        elastic=elastic,
    )


STATIC = job(JobKind.PYTORCH_JOB, 8, Master=1, Worker=3)


def test_the_master_of_a_static_job() -> None:
    assert operator_environment(STATIC, "Master", 0, cluster_address) == {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": "23456",
        "PET_MASTER_PORT": "23456",
        "MASTER_ADDR": "job-master-0",
        "PET_MASTER_ADDR": "job-master-0",
        "WORLD_SIZE": "32",
        "RANK": "0",
        "PET_NPROC_PER_NODE": "8",
        "PET_NODE_RANK": "0",
        "PET_NNODES": "4",
    }


def test_a_worker_of_a_static_job_comes_after_the_master() -> None:
    worker = operator_environment(STATIC, "Worker", 2, cluster_address)
    master = operator_environment(STATIC, "Master", 0, cluster_address)
    assert worker == {**master, "RANK": "3", "PET_NODE_RANK": "3"}


def test_an_elastic_job_in_full() -> None:
    elastic = Elastic(
        min_replicas=1, max_replicas=4, rdzv_id="run", rdzv_conf={"last_call_timeout": "3", "a": "b"}, max_restarts=9
    )
    elastic_job = job(JobKind.PYTORCH_JOB, 2, elastic, Worker=3)
    assert operator_environment(elastic_job, "Worker", 1, cluster_address) == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_ENDPOINT": "job-worker-0:23456",
        "PET_RDZV_BACKEND": "c10d",
        "PET_NNODES": "1:4",
        "PET_MAX_RESTARTS": "9",
        "PET_RDZV_ID": "run",
        "PET_RDZV_CONF": "last_call_timeout=3,a=b",
    }


def test_an_elastic_job_names_only_what_is_set() -> None:
    elastic_job = job(JobKind.PYTORCH_JOB, 1, Elastic(min_replicas=2, max_replicas=2), Worker=2)
    environment = operator_environment(elastic_job, "Worker", 0, cluster_address)
    assert sorted(environment) == [
        "PET_NNODES",
        "PET_NPROC_PER_NODE",
        "PET_RDZV_BACKEND",
        "PET_RDZV_ENDPOINT",
        "PYTHONUNBUFFERED",
    ]


def test_tf_config_exactly() -> None:
    workers = job(JobKind.TF_JOB, Worker=2)
    assert operator_environment(workers, "Worker", 0, service_address) == {
        "TF_CONFIG": '{"cluster":{"worker":["job-worker-0.team.svc:2222","job-worker-1.team.svc:2222"]},'
        '"task":{"type":"worker","index":0},"environment":"cloud"}'
    }


def test_tf_config_sorts_roles_and_writes_them_in_lower_case() -> None:
    chief = job(JobKind.TF_JOB, Worker=1, Chief=1)
    assert operator_environment(chief, "Chief", 0, service_address) == {
        "TF_CONFIG": '{"cluster":{"chief":["job-chief-0.team.svc:2222"],"worker":["job-worker-0.team.svc:2222"]},'
        '"task":{"type":"chief","index":0},"environment":"cloud"}'
    }


@pytest.mark.parametrize("single", [job(JobKind.TF_JOB, Chief=1), job(JobKind.BATCH_JOB, Transfer=1)])
def test_a_tfjob_with_one_pod_and_a_batch_job_get_nothing(single: Job) -> None:
    assert operator_environment(single, single.lead_role, 0, service_address) == {}


@pytest.mark.parametrize(
    ("rejected", "reason"),
    [
        (job(JobKind.PYTORCH_JOB, Worker=2), "no rendezvous"),
        (job(JobKind.PYTORCH_JOB, 1, Elastic(min_replicas=1, max_replicas=2), Master=1, Worker=1), "use Workers only"),
    ],
)
def test_a_job_that_the_operator_would_misread_is_rejected(rejected: Job, reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        operator_environment(rejected, "Worker", 0, cluster_address)
