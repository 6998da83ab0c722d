"""Jobs that the cluster would accept but not run as intended are rejected, with the remedy."""

import re
from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.job import Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_trainer.errors import InvalidSetting
from support.manifests import (
    IDENTITY,
    IMAGE,
    PLAIN,
    batch,
    elastic,
    indexed,
    indexed_elastic,
    pytorch,
    tensorflow,
    trainjob,
)

BOUNDS = elastic().elastic
assert BOUNDS is not None


def replicas(policy: RestartPolicy = RestartPolicy.ON_FAILURE, **counts: int) -> tuple[Replica, ...]:
    return tuple(Replica(role=role, count=n, command=("x",), restart_policy=policy) for role, n in counts.items())


REJECTED: list[tuple[Job, str]] = [
    (
        pytorch(replace(PLAIN, pod=pod_patch({"resourceClaims": [{"name": "a"}, {"name": "a"}]}))),
        "two resourceClaims have the name 'a'",
    ),
    (
        pytorch(replace(PLAIN, pod=pod_patch({"initContainers": [{"name": "init-pytorch", "image": "i"}]}))),
        "the job has a container 'init-pytorch' itself",
    ),
    (
        pytorch(replace(PLAIN, pod=pod_patch({"containers": [{"name": "pytorch", "image": "i"}]}))),
        "the job has a container 'pytorch' itself",
    ),
    (
        pytorch(replace(PLAIN, pod=pod_patch({"volumes": [{"name": "shared-memory"}]}))),
        "two volumes of a pod have the name 'shared-memory'",
    ),
    (
        pytorch(replace(PLAIN, pod=pod_patch({"volumes": [{"name": "claim-1"}]}))),
        "two volumes of a pod have the name 'claim-1'",
    ),
    (
        pytorch(replace(PLAIN, pod=pod_patch({}, {"volumeMounts": [{"name": "a", "mountPath": "/output/"}]}))),
        "are mounted at /output: mount",
    ),
    (
        pytorch(replace(PLAIN, pod=pod_patch({}, {"volumeMounts": [{"name": "a", "mountPath": "/dev/shm"}]}))),
        "are mounted at /dev/shm",
    ),
    (pytorch(Placement()), "set pods.image"),
    (pytorch(identity=replace(IDENTITY, pipeline="3d-unet")), "begin the pipeline's name with a letter"),
    (pytorch(replicas=replicas(Worker=2)), "without a Master or an elastic policy"),
    (pytorch(replicas=replicas(Master=2)), "one Master, not 2: increase the number of Workers"),
    (tensorflow(replicas=replicas(Chief=2)), "one Chief, not 2: increase the number of Workers"),
    (pytorch(replicas=replicas(Master=1, Chief=1)), "PyTorchJob cannot have the role 'Chief': use Master, Worker"),
    (tensorflow(replicas=replicas(Master=1)), "TFJob cannot have the role 'Master': use Chief, Evaluator, PS, Worker"),
    (pytorch(replicas=replicas(Master=1) * 2), "give each role once"),
    (pytorch(metrics_port=23456), "metrics_port is 23456, by which the pods find each other: set train.metrics_port"),
    (tensorflow(metrics_port=2222), "metrics_port is 2222, by which"),
    (tensorflow(replace(PLAIN, host_network=True), metrics_port=22277), "metrics_port is 22277, by which"),
    (indexed(metrics_port=23456), "metrics_port is 23456, by which"),
    (elastic(metrics_port=23456), "metrics_port is 23456, by which"),
    (pytorch(processes_per_replica=0), "at least one process, not 0"),
    (pytorch(replicas=replicas(RestartPolicy.ALWAYS, Master=1)), "restart_policy Always"),
    (pytorch(replace(PLAIN, scale_metrics=[{}])), "scale_metrics apply only to elastic jobs"),
    (pytorch(replace(PLAIN, env={"WORLD_SIZE": 9})), "WORLD_SIZE is set by the operator"),
    (elastic(replace(PLAIN, env={"PET_NNODES": 9})), "PET_NNODES is set by the operator"),
    (tensorflow(replace(PLAIN, secret_env={"TF_CONFIG": "a/b"})), "TF_CONFIG is set by the operator"),
    (indexed(replace(PLAIN, env={"MASTER_ADDR": "me"})), "MASTER_ADDR is set by the launcher"),
    (trainjob(replace(PLAIN, env={"JOB_COMPLETION_INDEX": 1})), "JOB_COMPLETION_INDEX is set by the launcher"),
    (indexed(replace(PLAIN, scheduler="volcano")), "volcano does not start a Job as a gang: use kueue"),
    (trainjob(replace(PLAIN, scheduler="scheduler-plugins")), "does not start a TrainJob as a gang: use kueue"),
    (indexed_elastic(replace(PLAIN, scale_metrics=[{}])), "nothing scales a Job: remove pods.scale_metrics"),
    (elastic(replicas=replicas(Master=1, Worker=2)), "does not count a Master among its nodes"),
    (elastic(kind=JobKind.TF_JOB), "a TFJob cannot be elastic: remove pods.min_workers"),
    (elastic(elastic=replace(BOUNDS, min_replicas=5)), "min_replicas 5 must be between 1 and max_replicas 4"),
    (elastic(elastic=replace(BOUNDS, min_replicas=0)), "min_replicas 0 must be between 1 and max_replicas 4"),
    (elastic(replicas=replicas(Worker=5)), "Workers must be between 2 and 4, not 5"),
    (elastic(replicas=replicas(Worker=1)), "Workers must be between 2 and 4, not 1"),
    (elastic(replace(PLAIN, scheduler="kueue", queue="q")), "Kueue stops a PyTorchJob whose number of pods changes"),
    (elastic(elastic=replace(BOUNDS, rdzv_backend="etcd")), "rdzv_backend 'etcd' needs a server"),
    (elastic(elastic=replace(BOUNDS, rdzv_conf={"a": ""})), "rendezvous as key=value,key=value"),
    (elastic(elastic=replace(BOUNDS, rdzv_conf={"a": "1,b=2"})), "remove entries that are empty or contain , or ="),
    (elastic(replicas=replicas(RestartPolicy.EXIT_CODE, Worker=2)), "elastic job needs pods.restart_policy OnFailure"),
    (elastic(replicas=replicas(RestartPolicy.NEVER, Worker=2)), "elastic job needs pods.restart_policy OnFailure"),
    (batch(replicas=replicas(Main=2)), "a batch Job has one pod, not 2"),
    (batch(replicas=replicas(RestartPolicy.EXIT_CODE, Main=1)), "does not support pods.restart_policy ExitCode"),
]


@pytest.mark.parametrize(("job", "reason"), REJECTED, ids=[reason for _, reason in REJECTED])
def test_a_job_that_would_be_misread_is_rejected(job: Job, reason: str) -> None:
    with pytest.raises(InvalidSetting) as rejected:
        job_manifest(job)
    assert str(rejected.value).startswith(f"{job.identity.name}: ")
    assert reason in str(rejected.value)


@pytest.mark.parametrize(
    "job",
    [
        pytorch(replicas=replicas(Master=1)),
        tensorflow(replicas=replicas(Worker=2)),
        tensorflow(
            replace(PLAIN, env={"TF_CONFIG": "{}"}), replicas=replicas(Chief=1)
        ),  # a single pod gets none from the operator
        pytorch(replace(PLAIN, env={"PYTHONUNBUFFERED": "1", "PET_LOG_DIR": "/logs"})),
        elastic(elastic=replace(BOUNDS, rdzv_conf={})),
        indexed(replace(PLAIN, env={"PYTHONUNBUFFERED": "1"})),
        indexed(replace(PLAIN, scheduler="kueue", queue="q"), replicas=replicas(RestartPolicy.EXIT_CODE, Worker=2)),
        trainjob(replace(PLAIN, scheduler="kueue", queue="q")),
        indexed_elastic(),
        batch(replicas=replicas(RestartPolicy.NEVER, Main=1)),
        batch(replace(PLAIN, scale_metrics=[{}])),  # it may share the placement of a training
    ],
)
def test_other_jobs_are_accepted(job: Job) -> None:
    job_manifest(job)


def test_the_limit_of_a_pods_name_includes_the_highest_possible_index() -> None:
    parts = {"pipeline": "p" * 16, "stage": "s" * 16, "run_id": "run-1"}
    identity = replace(IDENTITY, **parts, attempt=100_000)
    assert len(identity.name) == 54
    job_manifest(pytorch(identity=identity, replicas=replicas(Master=1)))
    job_manifest(tensorflow(identity=identity, replicas=replicas(PS=1000)))  # -ps-999
    for long in (
        tensorflow(identity=identity, replicas=replicas(Worker=9, Evaluator=1)),  # the longer role decides
        elastic(identity=identity, replicas=replicas(Worker=2), elastic=Elastic(min_replicas=1, max_replicas=11)),
    ):
        with pytest.raises(InvalidSetting, match="has more than 63 characters"):
            job_manifest(long)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"memory": "16 GB"}, "memory '16 GB' is .*16Gi"),
        ({"pod": pod_patch({}, {"resources": {"limits": {"hugepages-2Mi": "lots"}}})}, "hugepages-2Mi 'lots'"),
        ({"nccl": {"NCCL_TIMEOUT": 1800}}, "NCCL_TIMEOUT .* train.nccl_timeout_seconds"),
        ({"nccl": {"LD_PRELOAD": "x"}}, "NCCL_.*'LD_PRELOAD'"),
        ({"rdma": {"hca": 1}}, "resource names with a domain, such as rdma/hca, not 'hca'"),
        ({"rdma": {"rdma/hca": 0}}, "rdma.rdma/hca must be a whole number above 0, not 0"),
        ({"rdma": {"rdma/hca": "1"}}, "rdma.rdma/hca must be a whole number above 0, not '1'"),
        ({"rdma": {"rdma/hca": True}}, "rdma.rdma/hca must be a whole number above 0, not True"),
        ({"secret_env": {"TOKEN": "secret"}}, "secret_env.TOKEN must be SECRET/KEY, not 'secret'"),
        ({"queue": "q"}, "queue 'q' .*volcano or kueue"),
        ({"scheduler": "kueue"}, "scheduler kueue .*queue"),
        ({"scheduler": "slurm"}, "scheduler .*'slurm'"),
        ({"spot": "gcp"}, "spot .*'gcp'"),
        (
            {"scheduler": "volcano", "pod": pod_patch({"schedulerName": "mine"})},
            "volcano places the pods itself: remove .*'mine'",
        ),
        ({"pod": pod_patch({"containers": ["x"]})}, r"pod.spec.containers\[0\] is not an object"),
        ({"pod": pod_patch({"resourceClaims": [{"resourceClaimName": "gpu"}]})}, r"resourceClaims\[0\] has no name"),
        (
            {"pod": pod_patch({"initContainers": [{"name": "a", "image": "i", "env": {"A": "b"}}]})},
            r"initContainers.*env is not a list",
        ),
        ({"user": 0}, "user must be at least 1, not 0"),
        ({"gpu": 1}, "unknown setting 'pods.gpu'"),
    ],
)
def test_a_placement_rejects_invalid_values(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        Placement.from_dict({"image": IMAGE, **settings})


@pytest.mark.parametrize("quantity", ["1", "500m", "1.5", "16Gi", "1e3", "100M", ""])
def test_a_placement_accepts_kubernetes_quantities(quantity: str) -> None:
    assert Placement(cpu=quantity).cpu == quantity


def test_obsolete_nccl_settings_are_passed_on_with_a_warning() -> None:
    placement = Placement(nccl={"NCCL_TREE_THRESHOLD": 0, "NCCL_MIN_NRINGS": 4, "NCCL_DEBUG": "INFO"})
    threshold, rings = placement.warnings()
    assert re.search("NCCL_TREE_THRESHOLD.*NCCL_ALGO", threshold)
    assert re.search("NCCL_MIN_NRINGS.*NCCL_MIN_NCHANNELS", rings)
