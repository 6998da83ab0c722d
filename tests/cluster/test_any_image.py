"""Scripts of one's own in images that were not made for kubetrain: other Pythons, with or without a framework."""

import json
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from kubetrain_components.bring_code.pack import pack_code, upload_code
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.object_store.open_store import open_store
from support.cluster import CLUSTER, ENDPOINT, Bucket
from support.kfp_steps import PipelineRun, StepFailed, asked
from support.rights import connect_for_runs

pytestmark = pytest.mark.cluster
VERSIONS = Path.home() / ".pyenv/versions"
STEPS = ("sync-dataset", "launch-training", "collect-checkpoint", "evaluate-model", "promote-model")
DOCKERFILE = """\
FROM python:3.11-slim
COPY python /opt/python
ENV PATH=/opt/python/bin:/usr/bin:/bin LD_LIBRARY_PATH=/opt/python/lib
RUN chmod -R a+rX /opt/python
ARG PACKAGES=""
RUN if [ -n "$PACKAGES" ]; then python -m pip install --no-cache-dir $PACKAGES; fi
"""
BARE = """\
import json, os, sys
from pathlib import Path
from kubetrain_trainer import session

cluster = json.loads(os.environ["TF_CONFIG"])
images = sum(len(files) for _, _, files in os.walk(os.environ["KUBETRAIN_DATA"]))
print("Python", sys.version_info[:2], cluster["task"]["type"], "sees", images, "files", flush=True)
if cluster["task"]["type"] == "chief":
    output = Path(os.environ["KUBETRAIN_OUTPUT"])
    (output / "export" / "model").write_text(str(images))
    (output / "metrics.json").write_text('{"accuracy": 1.0}')
"""
KERAS = """\
import json, os, sys
import numpy as np, tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile("sgd", "mse")
inputs = np.ones((8, 2), "float32")
model.fit(tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :1])).batch(4), epochs=1, verbose=0)
print("Python", sys.version_info[:2], "TensorFlow", tf.__version__, flush=True)
is_chief = json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief"
model.save(os.environ["KUBETRAIN_OUTPUT"] + "/export/model.h5" if is_chief else "/tmp/other.h5")
if is_chief:
    with open(os.environ["KUBETRAIN_OUTPUT"] + "/metrics.json", "w") as file:
        json.dump({"accuracy": 1.0}, file)
"""
TORCH = """\
import json, os, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("Python", sys.version_info[:2], "PyTorch", torch.__version__, "of", int(total), flush=True)
if dist.get_rank() == 0:
    torch.save({"total": total}, os.environ["KUBETRAIN_OUTPUT"] + "/export/model.pt")
    with open(os.environ["KUBETRAIN_OUTPUT"] + "/metrics.json", "w") as file:
        json.dump({"accuracy": 1.0}, file)
dist.destroy_process_group()
"""


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    return connect_for_runs(namespace)


def image_of(version: str, packages: str, folder: Path) -> str:
    """Build an image with this Python, as the public ones are: it knows nothing of kubetrain."""
    found = sorted(VERSIONS.glob(f"{version}.*"))
    if not found:
        pytest.skip(f"there is no Python {version} in {VERSIONS}")
    ignored = shutil.ignore_patterns("test", "__pycache__")
    shutil.copytree(found[-1], folder / "image" / "python", symlinks=True, ignore=ignored)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    name = f"docker.io/foreign/python:{version}-{packages.replace('==', '-') or 'bare'}"
    command = [CLUSTER / "image", name, folder / "Dockerfile", folder / "image", "--build-arg", f"PACKAGES={packages}"]
    subprocess.run(command, check=True)
    return name


@pytest.mark.parametrize(
    ("version", "packages", "framework", "script"),
    [
        pytest.param("3.12", "", "tensorflow", BARE, marks=pytest.mark.core),
        pytest.param("3.8", "tensorflow-cpu==2.13.1", "tensorflow", KERAS, marks=pytest.mark.thorough),
        pytest.param("3.10", "torch==2.4.1", "pytorch", TORCH, marks=pytest.mark.thorough),
    ],
)
def test_a_script_in_a_foreign_image_ends_in_a_published_model(
    api: KubernetesApi,
    digits: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    packages: str,
    framework: str,
    script: str,
) -> None:
    for name, value in Bucket.credentials.items():
        monkeypatch.setenv(name, value)
    models = digits.uri(f"models/{uuid.uuid4().hex[:8]}")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(script)
    code = pack_code(tmp_path / "code")
    upload_code(code, open_store(models, ENDPOINT))
    pods = {"image": image_of(version, packages, tmp_path)}
    train = {"entry": {"script": "train.py"}, "code": code.digest}
    wanted = asked(digits, model={"uri": models, "gate": "accuracy>=0.8"}, pods=pods, train=train)
    run = PipelineRun(api, f"train_{framework}", f"run-foreign-{version.replace('.', '-')}", wanted)
    for step in STEPS:
        run.run(step)
    major, minor = version.split(".")
    assert f"Python ({major}, {minor})" in run.logs["launch-training"]
    latest = models.removeprefix(digits.uri("")) + "/latest.json"
    assert json.loads(digits.get(latest))["framework"] == framework


@pytest.mark.core
def test_an_image_without_pytorch_fails_before_the_dataset_is_read(
    api: KubernetesApi, digits: Bucket, tmp_path: Path
) -> None:
    pods = {"image": image_of("3.12", "", tmp_path)}
    models = digits.uri(f"models/{uuid.uuid4().hex[:8]}")
    wanted = asked(digits, model={"uri": models}, pods=pods, train={"entry": {"script": "train.py"}})
    with pytest.raises(StepFailed, match="there is no PyTorch where it would run"):
        PipelineRun(api, "train_pytorch", "run-without-torch", wanted).run("sync-dataset")
