"""The job of a training: the roles of its pods, their command, and what elastic ones need."""

from dataclasses import replace
from pathlib import Path

import pytest

from kubetrain_components.jobs.job import ClaimMount, Phase
from kubetrain_components.jobs.local.operator import pod_environments
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.summary import training_summary
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting
from support.jobs import MemoryBackend


def training(framework: str = "pytorch", workers: int = 3, min_workers: int = 0) -> TrainingJob:
    return TrainingJob(
        framework=framework,
        config=TrainConfig(),
        pipeline="p",
        run_id="r",
        data_dir=Path("/data"),
        output_dir=Path("/output"),
        workers=workers,
        min_workers=min_workers,
    )


def test_each_framework_has_its_lead_role_and_launcher() -> None:
    pytorch, tensorflow = training().to_job(), training("tensorflow").to_job()
    assert (pytorch.roles, pytorch.elastic) == ({"Master": 1, "Worker": 2}, None)
    assert tensorflow.roles == {"Chief": 1, "Worker": 2}
    modules = [
        [part for part in job.replicas[0].command if part.startswith("kubetrain_trainer.")]
        for job in (pytorch, tensorflow)
    ]
    assert modules == [
        ["kubetrain_trainer.pytorch_ddp.launch", "kubetrain_trainer.pytorch_ddp.train"],
        ["kubetrain_trainer.tensorflow_multiworker.train"],
    ]


def test_an_elastic_job_has_workers_only_and_needs_few_of_them() -> None:
    job = training(min_workers=1).to_job()
    assert job.roles == {"Worker": 3}
    assert job.elastic is not None
    assert (job.elastic.min_replicas, job.elastic.max_replicas) == (1, 3)


def test_the_first_of_the_elastic_pods_on_one_machine_hosts_the_rendezvous() -> None:
    job = training(min_workers=1).to_job()
    pods = pod_environments(job, {(pod.role, pod.index): {} for pod in job.pods()}, {})
    environments = [pods["Worker", index] for index in range(3)]
    assert [each["PET_LOCAL_ADDR"] for each in environments] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [each["PET_RDZV_CONF"].split(",")[-1] for each in environments] == ["is_host=1", "is_host=0", "is_host=0"]


@pytest.mark.parametrize(
    ("framework", "min_workers", "cause"),
    [
        ("tensorflow", 1, "min_workers: tensorflow .*: leave min_workers out"),
        ("pytorch", 4, "min_workers: 4 must be from 0 .* 3"),
        ("pytorch", -1, "min_workers: -1 must be from 0 .* 3"),
    ],
)
def test_what_cannot_be_elastic_is_refused(framework: str, min_workers: int, cause: str) -> None:
    with pytest.raises(InvalidSetting, match=cause):
        training(framework, min_workers=min_workers)


def test_a_training_whose_pods_are_gone_leaves_the_proof_to_the_next_step() -> None:
    output = ClaimMount(claim="output", path="/output")
    mounted = replace(training(workers=2), mounts=(output,), placement=Placement(image="i"))
    backend, lines = MemoryBackend(), []
    backend.create(mounted.to_job())
    backend.change(mounted.identity.name, phase=Phase.SUCCEEDED, pods=(), message="is successfully completed")
    result = launch_training(mounted, backend, lines.append)
    assert (result["checkpoint"], result["step"]) == ("", 0)
    assert "the next step verifies its checkpoint" in lines[-1].text
    assert "the next step verifies it" in training_summary(mounted, result, {}, "")


def test_a_training_on_this_machine_needs_the_words_of_rank_0() -> None:
    backend, local = MemoryBackend(), training(workers=2)
    backend.create(local.to_job())
    backend.change(local.identity.name, phase=Phase.SUCCEEDED, pods=())
    with pytest.raises(JobFailed, match="reported no checkpoint"):
        launch_training(local, backend, lambda line: None)


@pytest.mark.parametrize(("restarts", "limit"), [(3, 10), (0, 1), (7, 22)])
def test_max_restarts_of_the_placement_is_the_limit_for_all_pods(restarts: int, limit: int) -> None:
    job = replace(training(), placement=Placement(max_restarts=restarts)).to_job()
    assert job.backoff_limit == limit
