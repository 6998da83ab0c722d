"""Trainings on a real cluster, with the project's own images, in a restricted namespace."""

import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_pipelines.definitions.images import TRAINERS
from support.cluster import Bucket, pods_job
from support.training_cluster import CONFIG, OUTPUT, STORAGE, Cluster

pytestmark = pytest.mark.cluster
CORE = pytest.mark.core

WRITE_TO_DATA = """
import errno, pathlib
try:
    pathlib.Path("/data/more").write_text("x")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


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


@pytest.mark.parametrize("launcher", [Launcher.TRAINING_OPERATOR, Launcher.TRAINER, Launcher.JOB])
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
        Launcher.TRAINING_OPERATOR,
        pytest.param(Launcher.TRAINER, marks=CORE),
        Launcher.JOB,
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
    settings = ("data.format=synthetic", f"pods.image={TRAINERS['pytorch']}", "pods.cpu=200m", "train.epochs=10000")
    pairs = [part for pair in settings for part in ("--set", pair)]
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
