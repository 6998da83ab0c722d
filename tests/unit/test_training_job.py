"""The job of a training: the roles of its pods, their command, and what elastic ones need."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.jobs.local.operator import pod_environments
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.launch_training.launch import PROOF, launch_training
from kubetrain_components.launch_training.summary import training_summary
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.reporting.own_time import SHORTER_WAITS
from kubetrain_trainer.settings.config import TrainConfig
from support.jobs import MemoryBackend


def training(framework: str = "pytorch", workers: int = 3, min_workers: int = 0, **changes: Any) -> TrainingJob:
    return TrainingJob(
        framework=framework,
        config=TrainConfig(),
        pipeline="p",
        run_id="r",
        data_dir=Path("/data"),
        output_dir=Path("/output"),
        workers=workers,
        min_workers=min_workers,
        **changes,
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
        ["kubetrain_trainer.pytorch_ddp.launching.launch", "kubetrain_trainer.pytorch_ddp.train"],
        ["kubetrain_trainer.tensorflow_multiworker.train"],
    ]


def test_an_elastic_job_has_workers_only_and_needs_few_of_them() -> None:
    job = training(min_workers=1).to_job()
    assert job.roles == {"Worker": 3}
    assert job.elastic is not None
    assert (job.elastic.min_replicas, job.elastic.max_replicas) == (1, 3)


def test_a_job_that_may_grow_begins_with_its_workers_where_an_autoscaler_adds_pods() -> None:
    job = training(min_workers=1, max_workers=8).to_job()
    assert job.roles == {"Worker": 3}
    assert job.elastic is not None
    assert (job.elastic.min_replicas, job.elastic.max_replicas) == (1, 8)
    assert job.backoff_limit == 3 * 8 + 1


@pytest.mark.parametrize("launcher", [Launcher.TRAINER, Launcher.JOB])
def test_a_job_that_nothing_scales_has_all_its_pods_from_the_beginning(launcher: Launcher) -> None:
    grows = training(min_workers=1, max_workers=8, launcher=launcher, placement=Placement(image="i"))
    assert grows.to_job().roles == {"Worker": 8}
    manifest = manifests_of(grows.to_job())[1]
    assert manifest["metadata"]["annotations"]["kubetrain/needed-pods"] == "1"


@pytest.mark.parametrize("launcher", [Launcher.AUTO, *LAUNCHERS])
def test_a_launcher_adopts_the_job_of_a_release_without_max_workers(launcher: Launcher) -> None:
    older = training(min_workers=1, launcher=launcher).to_job()
    assert training(min_workers=1, max_workers=0, launcher=launcher).to_job().spec_hash == older.spec_hash
    assert training(min_workers=1, max_workers=3, launcher=launcher).to_job().spec_hash == older.spec_hash
    assert training(min_workers=1, max_workers=4, launcher=launcher).to_job().spec_hash != older.spec_hash


@pytest.mark.parametrize("launcher", [Launcher.AUTO, *LAUNCHERS])
def test_a_launcher_adopts_the_job_of_a_release_that_declared_no_port(launcher: Launcher) -> None:
    job = training(launcher=launcher).to_job()
    assert job.metrics_port == TrainConfig().metrics_port
    assert job.spec_hash == replace(job, metrics_port=0).spec_hash


def test_the_declared_port_of_metrics_is_the_one_in_the_command() -> None:
    job = training(placement=Placement(host_network=True)).to_job()
    command = job.replicas[0].command
    assert command[command.index("--metrics-port") + 1] == str(job.metrics_port)
    without = replace(training(), config=TrainConfig(metrics_port=0))
    assert without.to_job().metrics_port == 0


def test_nothing_grows_on_one_machine() -> None:
    job = training(workers=2, min_workers=1, max_workers=8).to_job()
    pods = pod_environments(job, {(pod.role, pod.index): {} for pod in job.pods()}, {})
    assert {each["PET_NNODES"] for each in pods.values()} == {"1:2"}, "the rendezvous must not wait for more"


def test_the_first_of_the_elastic_pods_on_one_machine_hosts_the_rendezvous() -> None:
    job = training(min_workers=1).to_job()
    pods = pod_environments(job, {(pod.role, pod.index): {} for pod in job.pods()}, {})
    environments = [pods["Worker", index] for index in range(3)]
    assert [each["PET_LOCAL_ADDR"] for each in environments] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert [each["PET_RDZV_CONF"].split(",")[-1] for each in environments] == ["is_host=1", "is_host=0", "is_host=0"]


@pytest.mark.parametrize(
    ("framework", "given", "cause"),
    [
        ("tensorflow", {"min_workers": 1}, "pods.min_workers: tensorflow .*: leave pods.min_workers and"),
        ("tensorflow", {"max_workers": 8}, "pods.min_workers: tensorflow .*: leave pods.min_workers and"),
        ("pytorch", {"min_workers": 4}, "min_workers is 4, more than pods.workers, 3"),
        ("pytorch", {"max_workers": 8}, "max_workers is 8, but only an elastic job grows: set pods.min_workers"),
        ("pytorch", {"min_workers": 1, "max_workers": 2}, "max_workers is 2, less than pods.workers, 3"),
        ("pytorch", {"min_workers": 1, "max_workers": -1}, "max_workers is -1, less than pods.workers, 3"),
    ],
)
def test_what_cannot_be_elastic_is_refused(framework: str, given: dict[str, int], cause: str) -> None:
    with pytest.raises(InvalidSetting, match=cause):
        training(framework, **given)


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


def test_a_training_that_was_stopped_is_no_success_although_its_pod_ended_well() -> None:
    backend, local = MemoryBackend(), training(workers=2)
    stopped = {"status": "stopped", **dict.fromkeys(PROOF, "1")}
    backend.create(local.to_job())
    backend.finish(local.identity.name, Phase.SUCCEEDED, exit_code=0, last_words=json.dumps(stopped))
    with pytest.raises(JobFailed, match="reported no checkpoint"):
        launch_training(local, backend, lambda line: None)


def test_a_failed_training_says_what_its_time_was_spent_on(tmp_path: Path) -> None:
    backend, local = MemoryBackend(), replace(training(workers=2), output_dir=tmp_path)
    start = {"started": 1000.0, "step": 7, "seconds": {"training": 2700.0, "data_wait": 900.0}}
    (tmp_path / "time.json").write_text(json.dumps([start]))
    backend.create(local.to_job())
    backend.finish(local.identity.name, Phase.FAILED, exit_code=1)
    backend.change(local.identity.name, phase=Phase.FAILED)
    with pytest.raises(JobFailed) as failed:
        launch_training(local, backend, lambda line: None)
    assert failed.value.last_lines[-2:] == [
        "time: 1 h 00 min, 75% training steps",
        f"lost: 15 min 00 s (25%), waiting for data: {SHORTER_WAITS}",
    ]


@pytest.mark.parametrize(("restarts", "limit"), [(3, 10), (0, 1), (7, 22)])
def test_max_restarts_of_the_placement_is_the_limit_for_all_pods(restarts: int, limit: int) -> None:
    job = replace(training(), placement=Placement(max_restarts=restarts)).to_job()
    assert job.backoff_limit == limit


@pytest.mark.parametrize(("restarts", "policies"), [(1, {"OnFailure"}), (0, {"Never"})])
def test_without_restarts_the_kubelet_begins_none(restarts: int, policies: set[str]) -> None:
    placement = Placement(max_restarts=restarts)
    command = CommandJob(framework="jax", command=("python",), pipeline="p", run_id="r", placement=placement)
    for job in (replace(training(), placement=placement).to_job(), command.to_job()):
        assert {each.restart_policy for each in job.replicas} == policies
