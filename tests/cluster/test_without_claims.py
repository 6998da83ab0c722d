"""Trainings of two pods without any PVC: their output is in a bucket, and kills lead to the same weights."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_pipelines.definitions.images import TRAINERS
from support.cluster import ENDPOINT_IN_PODS, Bucket

pytestmark = pytest.mark.cluster
KILLS = 20
SETTINGS = (
    *("data.format=synthetic", f"data.endpoint={ENDPOINT_IN_PODS}", "pods.cpu=200m", "pods.memory=2Gi"),
    *("train.max_steps=2000", "train.epochs=1000", "train.checkpoint_every=20", "train.select_checkpoint=last"),
    *("storage.transfer.cpu=100m", "pods.max_restarts=100"),
)


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    api = KubernetesApi.connect(namespace)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubetrain-s3"}}
    api.create(api.path("v1", "secrets"), {**secret, "stringData": Bucket.credentials})
    return api


def train(api: KubernetesApi, bucket: Bucket, framework: str, run_id: str) -> "subprocess.Popen[str]":
    settings = (*SETTINGS, f"pods.image={TRAINERS[framework]}")
    command = [str(Path(sys.executable).with_name("kubetrain")), "train", f"train-{framework}", "--cluster"]
    command += ["--namespace", api.namespace, "--output", bucket.uri("outputs"), "--run-id", run_id]
    command += [part for setting in settings for part in ("--set", setting)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def export(bucket: Bucket, run_id: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(bucket.get(f"outputs/{run_id}/export/manifest.json"))
    return manifest


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_pods_that_are_killed_resume_to_the_same_weights(api: KubernetesApi, framework: str) -> None:
    with Bucket(f"kept-{api.namespace}") as bucket:
        output, _ = train(api, bucket, framework, "whole").communicate()
        assert export(bucket, "whole"), output
        training, chance = train(api, bucket, framework, "killed"), random.Random(0)
        for _ in range(KILLS):
            time.sleep(chance.uniform(5, 20))
            kill_one(api, chance)
        output, _ = training.communicate()
        assert training.returncode == 0, output
        assert "resumes from" in output
        whole, killed = (export(bucket, run_id) for run_id in ("whole", "killed"))
        assert [file["sha256"] for file in killed["files"]] == [file["sha256"] for file in whole["files"]]
        assert api.get(api.path("v1", "persistentvolumeclaims"))["items"] == []


def kill_one(api: KubernetesApi, chance: random.Random) -> None:
    """Kill a pod, or only its sidecar, which alone has the components' program."""
    pods = api.get(api.path("v1", "pods"), labelSelector="kubetrain/run-id=killed")["items"]
    running = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]
    if not running:
        return
    kubectl, name = ["kubectl", "--namespace", api.namespace], chance.choice(running)
    sidecar = [*kubectl, "exec", name, "-c", "kubetrain-output", "--", "python", "-c", "import os; os.kill(1, 15)"]
    pod = [*kubectl, "delete", "pod", name, "--grace-period=0", "--force"]
    subprocess.run(chance.choice([sidecar, pod]), check=False, capture_output=True)
