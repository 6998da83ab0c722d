"""What the cluster would take without a word and run otherwise than meant is refused, and what to do is said."""

from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.job import Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests import job_manifest
from kubetrain_components.jobs.placement import Placement
from kubetrain_trainer.errors import InvalidSetting
from support.manifests import IDENTITY, IMAGE, PLAIN, batch, elastic, pytorch, tensorflow

BOUNDS = elastic().elastic
assert BOUNDS is not None


def replicas(policy: RestartPolicy = RestartPolicy.ON_FAILURE, **counts: int) -> tuple[Replica, ...]:
    return tuple(Replica(role=role, count=n, command=("x",), restart_policy=policy) for role, n in counts.items())


REFUSED: list[tuple[Job, str]] = [
    (pytorch(Placement()), "placement has no image: set image"),
    (pytorch(identity=replace(IDENTITY, pipeline="3d-unet")), "need a name that begins with a letter: begin the pipe"),
    (pytorch(replicas=replicas(Worker=2)), "without a Master or an elastic policy would never find each other: add"),
    (pytorch(replicas=replicas(Master=2)), "there is one Master, not 2: raise the number of Workers"),
    (tensorflow(replicas=replicas(Chief=2)), "there is one Chief, not 2: raise the number of Workers"),
    (pytorch(replicas=replicas(Master=1, Chief=1)), "knows no role 'Chief' in a PyTorchJob: use Master, Worker"),
    (tensorflow(replicas=replicas(Master=1)), "knows no role 'Master' in a TFJob: use Chief, Evaluator, PS, Worker"),
    (pytorch(replicas=replicas(Master=1) * 2), "a role comes twice, of which the operator would take one: give each"),
    (pytorch(processes_per_replica=0), "a pod has at least one process, not 0"),
    (pytorch(replicas=replicas(RestartPolicy.ALWAYS, Master=1)), "starts again, and the job never ends: use OnFailure"),
    (pytorch(replace(PLAIN, scale_metrics=[{}])), "scale_metrics size elastic jobs alone: set min_workers"),
    (pytorch(replace(PLAIN, env={"WORLD_SIZE": 9})), "WORLD_SIZE is set by the operator, whose value wins: leave it"),
    (elastic(replace(PLAIN, env={"PET_NNODES": 9})), "PET_NNODES is set by the operator, whose value wins: leave it"),
    (tensorflow(replace(PLAIN, secret_env={"TF_CONFIG": "a/b"})), "TF_CONFIG is set by the operator, whose value wins"),
    (elastic(replicas=replicas(Master=1, Worker=2)), "with a Master counts its nodes without it: use Workers only"),
    (elastic(kind=JobKind.TF_JOB), "a TFJob cannot be elastic: leave min_workers out"),
    (elastic(elastic=replace(BOUNDS, min_replicas=5)), "min_replicas 5 must be from 1 to max_replicas 4"),
    (elastic(elastic=replace(BOUNDS, min_replicas=0)), "min_replicas 0 must be from 1 to max_replicas 4"),
    (elastic(replicas=replicas(Worker=5)), "5 Workers are not from 2 to 4: ask for as many"),
    (elastic(replicas=replicas(Worker=1)), "1 Workers are not from 2 to 4: ask for as many"),
    (elastic(elastic=replace(BOUNDS, rdzv_backend="etcd")), "rdzv_backend 'etcd' needs a server that nothing here"),
    (elastic(elastic=replace(BOUNDS, rdzv_conf={"a": ""})), "rdzv_conf goes to torchrun as key=value,key=value: leave"),
    (elastic(elastic=replace(BOUNDS, rdzv_conf={"a": "1,b=2"})), "leave out what is empty or has , or = in it"),
    (elastic(replicas=replicas(RestartPolicy.EXIT_CODE, Worker=2)), "needs restart_policy OnFailure: under any other"),
    (elastic(replicas=replicas(RestartPolicy.NEVER, Worker=2)), "needs restart_policy OnFailure: under any other"),
    (batch(replicas=replicas(Main=2)), "a batch Job has one pod, not 2"),
    (batch(replicas=replicas(RestartPolicy.EXIT_CODE, Main=1)), "knows no restart_policy ExitCode: use OnFailure or"),
]


@pytest.mark.parametrize(("job", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_is_misread_is_refused(job: Job, reason: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        job_manifest(job)
    assert str(refused.value).startswith(f"{job.identity.name}: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "job",
    [
        pytorch(replicas=replicas(Master=1)),
        tensorflow(replicas=replicas(Worker=2)),
        tensorflow(replace(PLAIN, env={"TF_CONFIG": "{}"}), replicas=replicas(Chief=1)),  # alone it gets none
        pytorch(replace(PLAIN, env={"PYTHONUNBUFFERED": "1", "PET_LOG_DIR": "/logs"})),
        elastic(elastic=replace(BOUNDS, rdzv_conf={})),
        batch(replicas=replicas(RestartPolicy.NEVER, Main=1)),
        batch(replace(PLAIN, scale_metrics=[{}])),  # the placement of the training that it evaluates
    ],
)
def test_what_is_read_as_meant_is_not(job: Job) -> None:
    job_manifest(job)


def test_the_longest_pod_name_counts_of_as_many_pods_as_there_may_be() -> None:
    parts = {"pipeline": "p" * 16, "stage": "s" * 16, "run_id": "run-1"}
    identity = replace(IDENTITY, **parts, attempt=100_000)
    assert len(identity.name) == 54
    job_manifest(pytorch(identity=identity, replicas=replicas(Master=1)))
    job_manifest(tensorflow(identity=identity, replicas=replicas(PS=1000)))  # -ps-999
    for long in (
        tensorflow(identity=identity, replicas=replicas(Worker=9, Evaluator=1)),  # the longer one, not the later letter
        elastic(identity=identity, replicas=replicas(Worker=2), elastic=Elastic(min_replicas=1, max_replicas=11)),
    ):
        with pytest.raises(InvalidSetting, match="has more than 63 characters: shorten the job's"):
            job_manifest(long)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"memory": "16 GB"}, "memory '16 GB' is no Kubernetes quantity: write it like 500m, 4 or 16Gi"),
        ({"extra_resources": {"hugepages-2Mi": "lots"}}, "hugepages-2Mi 'lots' is no Kubernetes quantity"),
        ({"nccl": {"NCCL_TIMEOUT": 1800}}, "NCCL_TIMEOUT is read by nobody: set nccl_timeout_seconds of the training"),
        ({"nccl": {"LD_PRELOAD": "x"}}, "nccl takes names that begin with NCCL_, not 'LD_PRELOAD'"),
        ({"secret_env": {"TOKEN": "secret"}}, "secret_env TOKEN must be SECRET/KEY, not 'secret'"),
        ({"queue": "q"}, "queue 'q' is nobody's: set scheduler to volcano or kueue"),
        ({"scheduler": "kueue"}, "scheduler kueue needs the name of a LocalQueue: set queue"),
        ({"scheduler": "slurm"}, "scheduler cannot be 'slurm'"),
        ({"spot": "gcp"}, "spot cannot be 'gcp'"),
        ({"user": 0}, "user must be at least 1, not 0"),
        ({"gpu": 1}, "unknown setting 'gpu'"),
    ],
)
def test_a_placement_refuses_what_it_cannot_mean(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason.replace("(", r"\(")):
        Placement.from_dict({"image": IMAGE, **settings})


@pytest.mark.parametrize("quantity", ["1", "500m", "1.5", "16Gi", "1e3", "100M", ""])
def test_quantities_as_kubernetes_writes_them(quantity: str) -> None:
    assert Placement(cpu=quantity).cpu == quantity


def test_what_has_no_effect_any_more_is_passed_on_with_a_warning() -> None:
    placement = Placement(nccl={"NCCL_TREE_THRESHOLD": 0, "NCCL_MIN_NRINGS": 4, "NCCL_DEBUG": "INFO"})
    assert placement.warnings() == [
        "NCCL_TREE_THRESHOLD is read by no NCCL since 2.5: NCCL_ALGO chooses the algorithm",
        "NCCL_MIN_NRINGS is an old name of NCCL_MIN_NCHANNELS",
    ]
