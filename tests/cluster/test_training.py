"""Trainings on a real cluster, with the project's own images, in a restricted namespace."""

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import ClaimMount, Job, LogLine
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.state import replica_name
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_pipelines.images import TRAINERS
from kubetrain_trainer.config import TrainConfig
from support.cluster import Bucket, pods_job
from support.cluster_data import sync

pytestmark = pytest.mark.cluster
CORE = pytest.mark.core

STORAGE = Storage(dataset_name="digits", staging_size="1Gi", output_size="1Gi")
OUTPUT = ClaimMount(claim=STORAGE.output_claim, path="/output")
CONFIG = TrainConfig(epochs=3, checkpoint_every=20)
WRITE_TO_DATA = """
import errno, pathlib
try:
    pathlib.Path("/data/more").write_text("x")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


class Cluster:
    """What the steps of a pipeline do, one after another."""

    def __init__(self, namespace: str, bucket: Bucket) -> None:
        self.api = KubernetesApi.connect(namespace)
        self.bucket = bucket
        self.lines: list[LogLine] = []
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubetrain-s3"}}
        self.api.create(self.api.path("v1", "secrets"), {**secret, "stringData": bucket.credentials})

    def sync(self) -> dict[str, Any]:
        return sync(self.api, self.bucket.name, "r1", STORAGE, "pytorch", self.hear)

    def training(self, framework: str, report: dict[str, Any], **changes: Any) -> TrainingJob:
        data = ClaimMount(claim=report["claim"], path="/data", sub_path=report["sub_path"], read_only=True)
        usual = TrainingJob(
            framework=framework,
            config=CONFIG,
            pipeline="chain",
            run_id=f"r1-{framework}",
            data_dir=Path("/data"),
            output_dir=Path(f"/output/r1-{framework}"),
            dataset_digest=report["digest"],
            placement=Placement(image=f"docker.io/{TRAINERS[framework]}", cpu="200m", memory="2Gi", grace_seconds=20),
            mounts=(data, OUTPUT),
        )
        return replace(usual, **changes)

    def launch(self, training: TrainingJob) -> dict[str, Any]:
        with KubernetesBackend(self.api) as backend:
            return launch_training(training, backend, self.hear)

    def hear(self, line: LogLine) -> None:
        print(f"[{line.pod}] {line.text}")
        self.lines.append(line)

    def await_line(self, text: str) -> LogLine:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            for line in self.lines.copy():
                if text in line.text:
                    return line
            time.sleep(0.1)
        raise AssertionError(f"no line has {text!r}")

    def kill_pod(self, job: Job, pod: str) -> None:
        """At once, as when its node is gone."""
        pods = self.api.get(self.api.path("v1", "pods"), labelSelector=job.identity.selector)["items"]
        (name,) = (each["metadata"]["name"] for each in pods if replica_name(each) == pod)
        path = self.api.path("v1", "pods", name)
        subprocess.run(
            ["kubectl", "delete", "--raw", f"{path}?gracePeriodSeconds=0&propagationPolicy=Background"],
            check=True,
            capture_output=True,
        )


@pytest.fixture
def cluster(namespace: str, digits: Bucket) -> Cluster:
    return Cluster(namespace, digits)


@CORE
def test_training_pods_cannot_write_to_the_dataset(cluster: Cluster) -> None:
    (data, _) = cluster.training("pytorch", cluster.sync()).mounts
    job = pods_job(WRITE_TO_DATA, run_id="writer", kind=JobKind.BATCH_JOB)
    lines: list[LogLine] = []
    with KubernetesBackend(cluster.api) as backend:
        run_job(replace(job, mounts=(data,)), backend, lines.append)
    assert [line.text for line in lines if not line.text.startswith("waiting: ")] == ["EROFS"]


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(Launcher.TRAINING_OPERATOR, marks=CORE),
        pytest.param(Launcher.TRAINER),
        pytest.param(Launcher.JOB, marks=CORE),
    ],
)
def test_a_killed_worker_costs_no_more_than_its_steps_since_the_checkpoint(
    cluster: Cluster, launcher: Launcher
) -> None:
    report = cluster.sync()
    training = cluster.training("pytorch", report, config=replace(CONFIG, epochs=12), launcher=launcher)
    second = "worker-0" if launcher is Launcher.TRAINING_OPERATOR else "worker-1"
    killer = threading.Thread(
        target=lambda: (cluster.await_line("saved step-"), cluster.kill_pod(training.to_job(), second))
    )
    killer.start()
    result = cluster.launch(training)
    killer.join()
    assert result["step"] == 12 * 20
    assert cluster.await_line("resumes from").text
    assert cluster.await_line("; restarting")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(Launcher.TRAINING_OPERATOR, marks=CORE),
        pytest.param(Launcher.TRAINER, marks=CORE),
        pytest.param(Launcher.JOB),
    ],
)
def test_an_elastic_job_goes_on_without_a_worker(cluster: Cluster, launcher: Launcher) -> None:
    report = cluster.sync()
    config = replace(CONFIG, epochs=12)
    training = cluster.training("pytorch", report, config=config, min_workers=1, run_id="r1-elastic", launcher=launcher)
    training = replace(training, output_dir=Path("/output/r1-elastic"))
    killer = threading.Thread(
        target=lambda: (cluster.await_line("saved step-"), cluster.kill_pod(training.to_job(), "worker-1"))
    )
    killer.start()
    result = cluster.launch(training)
    killer.join()
    assert result["status"] == "completed"


@CORE
def test_an_output_claim_that_pods_may_not_write(cluster: Cluster) -> None:
    report = cluster.sync()
    training = cluster.training("pytorch", report)
    read_only = replace(training, mounts=(training.mounts[0], replace(OUTPUT, read_only=True)))
    with pytest.raises(Exception, match=r"/output.*Read-only file system"):
        cluster.launch(read_only)


@CORE
def test_ctrl_c_of_the_command_deletes_the_job(namespace: str, cluster: Cluster) -> None:
    cluster.sync()  # makes the output claim
    program = [str(Path(sys.executable).with_name("kubetrain")), "train", "--cluster", "--namespace", namespace]
    settings = {"data": "synthetic", "image": f"docker.io/{TRAINERS['pytorch']}", "cpu": "200m", "epochs": 10_000}
    pairs = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = [*program, "--output", STORAGE.output_claim, "--run-id", "stopped", *pairs]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "training starts" in line:
            break
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    jobs = cluster.api.path("kubeflow.org/v1", "pytorchjobs")
    while any("stopped" in each["metadata"]["labels"]["kubetrain/run-id"] for each in cluster.api.get(jobs)["items"]):
        assert time.monotonic() - began < 5
        time.sleep(0.1)
    process.communicate(timeout=20)
    assert process.returncode == 130
