"""One file describes a run for every command, here and on a cluster; the record of a run is such a file."""

from pathlib import Path

import pytest
import yaml

from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.local_run.embedded_s3 import CREDENTIALS, EmbeddedS3
from support.cli import kubetrain, run_json
from support.kfp_runs import kfp_without_cluster

FILE = """
pipeline: train-pytorch
data:
  uri: s3://{bucket}/numbers
  endpoint: {url}
  secret: team-s3
model:
  uri: s3://{bucket}/models
  gate: sum>=6
pods:
  workers: 1
  gpus: 1
  secret_env: {{TOKEN: hub/token}}
storage:
  staging_size: 7Gi
train:
  entry: train.py --lr 1e-3
  metrics_port: 0
schedule: {{name: nightly, every: 1d}}
"""
ON_CLUSTER = (
    "only a cluster uses data.secret, pods.gpus, pods.secret_env, storage.staging_size: no effect on this machine"
)
SCRIPT = """
import json, os
from pathlib import Path

output, data = Path(os.environ["KUBETRAIN_OUTPUT"]), Path(os.environ["KUBETRAIN_DATA"])
(output / "export" / "weights").write_text("1")
numbers = (data / "numbers.txt").read_text().split()
(output / "metrics.json").write_text(json.dumps({"sum": sum(map(int, numbers))}))
"""


@pytest.fixture
def folder(tmp_path: Path, bucket: str, s3: EmbeddedS3) -> Path:
    (tmp_path / "numbers.txt").write_text("1 2 3")
    open_store(f"s3://{bucket}/numbers", s3.url).write("numbers.txt", tmp_path / "numbers.txt")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "run.yaml").write_text(FILE.format(bucket=bucket, url=s3.url))
    return tmp_path


@pytest.mark.slow
def test_a_file_runs_here_and_its_record_runs_again(folder: Path) -> None:
    first = kubetrain("run", "run.yaml", "--workspace", "first", "--code", "code", cwd=folder, **CREDENTIALS)
    assert first.exit_code == 0, first.output
    assert ON_CLUSTER in first.output.splitlines()
    record = run_json(folder / "first")
    asked = yaml.safe_load((folder / "run.yaml").read_text())
    del asked["schedule"]
    entry = {"script": "train.py", "args": ["--lr", "1e-3"]}
    assert record["request"]["train"].pop("code")
    assert record["request"] == {**asked, "train": {**asked["train"], "entry": entry}}

    again = kubetrain("run", "first/run.json", "--workspace", "again", "--code", "code", cwd=folder, **CREDENTIALS)
    assert again.exit_code == 0, again.output
    repeated = run_json(folder / "again")
    assert (repeated["request"]["pods"], repeated["settings"]) == (record["request"]["pods"], record["settings"])
    assert repeated["evaluation"]["metrics"] == {"sum": 6}


def test_the_same_file_is_rendered_and_checked_for_a_cluster(folder: Path) -> None:
    rendered = kubetrain("render", "run.yaml", cwd=folder)
    assert rendered.exit_code == 0, rendered.output
    manifests = {each["metadata"]["name"]: each for each in yaml.safe_load_all(rendered.output)}
    assert manifests["kubetrain-staging"]["spec"]["resources"]["requests"]["storage"] == "7Gi"
    (training,) = (each for each in manifests.values() if each["kind"] == "PyTorchJob")
    (container,) = training["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"

    checked = kubetrain("doctor", "run.yaml", "--no-pods", cwd=folder, KUBECONFIG="/nosuch")
    assert checked.exit_code == 1
    assert "no cluster is configured" in checked.output


def test_the_same_file_is_submitted_and_scheduled(folder: Path) -> None:
    with kfp_without_cluster() as server:
        login = {"cwd": folder, "KUBETRAIN_KFP_ENDPOINT": server.endpoint, "KUBECONFIG": "/nosuch"}
        submitted = kubetrain("submit", "run.yaml", "--detach", **login)
        assert submitted.exit_code == 0, submitted.output
        applied = kubetrain("schedule", "apply", "run.yaml", **login)
        assert applied.exit_code == 0, applied.output
    (run,), (schedule,) = server.kinds["runs"].values(), server.schedules
    form = run["runtime_config"]["parameters"]
    assert form == schedule["runtime_config"]["parameters"]
    assert (form["pods_gpus"], form["storage_staging_size"], form["data_secret"]) == (1, "7Gi", "team-s3")
    assert form["train_more"] == {"metrics_port": 0}
