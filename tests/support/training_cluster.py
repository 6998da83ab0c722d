"""The test cluster with a dataset in S3, on which tests train."""

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.job import ClaimMount, Job
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.state import replica_name
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_pipelines.definitions.images import TRAINERS
from kubetrain_trainer.settings.config import TrainConfig
from support.cluster import Bucket
from support.cluster_data import sync

STORAGE = Storage(staging_size="1Gi", output_size="1Gi")
OUTPUT = ClaimMount(claim=STORAGE.output_claim, path="/output")
CONFIG = TrainConfig(epochs=3, checkpoint_every=20)


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

    def synthetic_training(self, epochs: int, **changes: Any) -> TrainingJob:
        """Create a PVC for its output, and return a PyTorch training that needs no dataset."""
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": OUTPUT.claim}, "spec": spec}
        self.api.create(self.api.path("v1", "persistentvolumeclaims"), claim)
        config = replace(CONFIG, data="synthetic", epochs=epochs)
        no_dataset = {"claim": "none", "sub_path": "", "digest": ""}
        return self.training("pytorch", no_dataset, **{"config": config, "mounts": (OUTPUT,), **changes})

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
            placement=Placement(image=TRAINERS[framework], cpu="200m", memory="2Gi", grace_seconds=20),
            mounts=(data, OUTPUT),
        )
        return replace(usual, **changes)

    def launch(self, training: TrainingJob) -> dict[str, Any]:
        with KubernetesBackend(self.api) as backend:
            return launch_training(training, backend, self.hear)

    def hear(self, line: LogLine) -> None:
        print(f"[{line.pod}] {line.text}")
        self.lines.append(line)

    def await_line(self, text: str, pod: str = "") -> LogLine:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            for line in self.lines.copy():
                if text in line.text and pod in ("", line.pod):
                    return line
            time.sleep(0.1)
        raise AssertionError(f"no line{pod and ' of '}{pod} has {text!r}")

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
