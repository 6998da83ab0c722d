"""A pipeline on shards that stay in S3, which sidecars bring to the pods that train and evaluate."""

from pathlib import Path

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_pipelines.local_run.digits import write_digits
from kubetrain_trainer.data.shard_cache import VARIABLE
from support.cluster import Bucket
from support.kfp_steps import PipelineRun, asked
from support.packed_digits import packed_files
from support.rights import connect_for_runs, grant_launch

pytestmark = pytest.mark.cluster
CACHE = {"format": "tar_shards", "delivery": "cache", "cache_gb": 0.0012}


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    made = connect_for_runs(namespace)
    grant_launch(made)
    return made


@pytest.fixture
def packed(tmp_path: Path) -> dict[str, bytes]:
    write_digits(tmp_path / "digits")
    return {f"packed/{key}": path.read_bytes() for key, path in packed_files(tmp_path / "digits", tmp_path / "packed")}


@pytest.mark.parametrize(
    ("framework", "launcher"),
    [
        pytest.param("pytorch", Launcher.TRAINING_OPERATOR, marks=pytest.mark.core),
        ("pytorch", Launcher.TRAINER),
        ("tensorflow", Launcher.JOB),
    ],
)
def test_a_run_trains_and_evaluates_on_shards_in_s3(
    api: KubernetesApi, packed: dict[str, bytes], framework: str, launcher: Launcher
) -> None:
    with Bucket(f"packed-{api.namespace}") as bucket:
        bucket.put(packed)
        wanted = asked(
            bucket,
            data={**CACHE, "uri": bucket.uri("packed")},
            pods={"launcher": launcher},
            storage={"transfer": {"cpu": "200m", "memory": "512Mi"}},
            train={"epochs": 3, "log_every": 10},
        )
        run = PipelineRun(api, f"train_{framework}", f"run-{framework}", wanted)
        run.run("sync-dataset")
        run.run("launch-training")
        run.run("collect-checkpoint")
        evaluated = run.run("evaluate-model")["artifacts"]
    assert evaluated["test_metrics"]["artifacts"][0]["metadata"]["accuracy"] > 0.9
    assert "shards_fetched=" in run.logs["launch-training"]
    listed = [pod for pod in api.get(api.path("v1", "pods"))["items"] if "launch-training" in pod["metadata"]["name"]]
    kept = [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]
    assert kept, "at least that of rank 0 had ended before the verdict"
    for pod in kept:
        assert pod["status"]["phase"] == "Succeeded"
        [main] = pod["spec"]["containers"]
        assert VARIABLE in str(main["env"])
        assert "kubetrain-s3" not in str(main)
        [sidecar] = [each for each in pod["status"]["initContainerStatuses"] if "shard-cache" in each["name"]]
        assert sidecar["restartCount"] == 0
        assert sidecar["state"]["terminated"]["exitCode"] == 0
