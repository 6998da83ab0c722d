"""The examples of scripts of your own on the cluster: brought by --code, or in an image of your own."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.bring_code.pack import pack_code, upload_code
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.definitions.images import TRAINERS
from kubetrain_pipelines.requests.request_file import read_source
from support.cluster import CLUSTER, ENDPOINT, Bucket
from support.kfp_steps import PipelineRun, asked
from support.rights import connect_for_runs

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGE = "docker.io/kubetrain-examples/own-image:1"
STEPS = ("sync-dataset", "launch-training", "collect-checkpoint", "evaluate-model", "promote-model")
pytestmark = pytest.mark.cluster


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    return connect_for_runs(namespace)


@pytest.fixture(scope="module")
def own_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with the libraries and the code of two examples, by examples/own_image."""
    folder = tmp_path_factory.mktemp("image")
    libraries = []
    for example in ("lightning", "huggingface"):
        shutil.copytree(EXAMPLES / example, folder / example)
        libraries.append((folder / example / "requirements.txt").read_text())
    (folder / "requirements.txt").write_text("".join(libraries))
    trainer = f"TRAINER={TRAINERS['pytorch']}"
    command = [CLUSTER / "image", IMAGE, EXAMPLES / "own_image" / "Dockerfile", folder, "--build-arg", trainer]
    subprocess.run(command, check=True)
    return IMAGE


def train(api: KubernetesApi, digits: Bucket, framework: str, example: str, **groups: Mapping[str, Any]) -> PipelineRun:
    """Run all steps, and check that the model passed the gate and was published."""
    wanted = asked(digits, model={"uri": digits.uri(f"models/{example}"), "gate": "accuracy>=0.8"}, **groups)
    run = PipelineRun(api, f"train_{framework}", f"run-{example.replace('_', '-')}", wanted)
    for step in STEPS:
        run.run(step)
    assert "[kubetrain] step=" in run.logs["launch-training"]
    assert json.loads(digits.get(f"models/{example}/latest.json"))["framework"] == framework
    return run


@pytest.mark.parametrize(
    ("example", "framework", "entry"),
    [
        ("ddp_script", "pytorch", read_source(str(EXAMPLES / "ddp_script" / "digits.yaml")).request["train"]["entry"]),
        pytest.param("keras", "tensorflow", {"script": "train.py"}, marks=pytest.mark.core),
    ],
)
def test_an_example_trains_with_the_stock_image(
    api: KubernetesApi,
    digits: Bucket,
    example: str,
    framework: str,
    entry: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in Bucket.credentials.items():
        monkeypatch.setenv(name, value)
    code = pack_code(EXAMPLES / example)
    upload_code(code, open_store(digits.uri(f"models/{example}"), ENDPOINT))
    train(api, digits, framework, example, train={"entry": entry, "code": code.digest})


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("example", ["lightning", "huggingface"])
def test_an_example_trains_with_an_image_of_its_own(
    api: KubernetesApi, digits: Bucket, example: str, own_image: str
) -> None:
    entry = {"script": f"{example}/train.py"}
    run = train(api, digits, "pytorch", example, train={"entry": entry}, pods={"image": own_image})
    assert run.outputs["launch-training"]["parameterValues"]["image"] == own_image
