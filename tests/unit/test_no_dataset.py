"""Runs of a script that brings its own data."""

from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.cluster import ClusterSite
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_components.sync_dataset.cluster_sync import sync_on_cluster
from kubetrain_components.sync_dataset.summary import dataset_summary
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig
from support.claims import MemoryClaims
from support.cli import kubetrain
from support.jobs import MemoryBackend

SCRIPT = TrainConfig(entry={"script": "train.py"})


def parameters(**changes: Any) -> RunParameters:
    usual: dict[str, Any] = {
        "framework": "pytorch",
        "model_uri": "s3://b/models",
        "train_config": SCRIPT,
        "pipeline": "p",
        "run_id": "r",
    }
    usual |= {"placement": Placement(image="trainer:1"), "components_image": "components:1"}
    return RunParameters(**{**usual, **changes})


def test_nothing_is_synced_or_mounted() -> None:
    made = {(each["kind"], each["metadata"]["name"]) for each in planned_manifests(parameters())}
    assert ("PersistentVolumeClaim", "kubetrain-output") in made
    assert ("PersistentVolumeClaim", "kubetrain-staging") not in made
    assert "sync" not in str(made)
    assert "'/data'" not in str(planned_manifests(parameters()))


def test_the_step_creates_no_job() -> None:
    claims, backend = MemoryClaims(), MemoryBackend()
    report = sync_on_cluster(parameters(), backend, claims, lambda line: None)
    place = DatasetPlace.of_report(report)
    assert (report["digest"], claims.made) == ("", ["kubetrain-output"])
    assert [mount.claim for mount in place.mounts("kubetrain-output")] == ["kubetrain-output"]
    assert ClusterSite().data_dir(place) == Path()
    assert "brings its own data" in dataset_summary(report, place, Path())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train_config": TrainConfig()}, "data.uri is empty, but only a script of your own, train.entry, can bring"),
        ({"train_config": TrainConfig(), "framework": ""}, "data.uri is empty"),
        ({"skip_unchanged": True}, "train.skip_unchanged compares datasets, but data.uri is empty"),
    ],
)
def test_what_needs_a_dataset_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        parameters(**changes)


def test_a_run_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib\n"
        "assert os.environ['KUBETRAIN_DATA'] == '', os.environ['KUBETRAIN_DATA']\n"
        "pathlib.Path(os.environ['KUBETRAIN_OUTPUT'], 'export', 'model.txt').write_text('x')\n"
    )
    settings = ("pods.workers=1", "train.entry=train.py", "train.metrics_port=0")
    pairs = [part for pair in settings for part in ("--set", pair)]
    finished = kubetrain("run", "--code", ".", "--set", "data.uri=", *pairs, cwd=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert not (tmp_path / "kubetrain-workspace" / "staging").exists()
    trained = kubetrain("train", "--output", "out", *pairs, cwd=tmp_path)
    assert trained.exit_code == 0, trained.output
    assert "no dataset: your script brings its own data; name one with --data" in trained.output
