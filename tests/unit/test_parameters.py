"""The checks of a run's parameters, the URIs of a local run, and the paths at each site."""

from pathlib import Path

import pytest

from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.names import GROUPS, KINDS
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.site import WORKSPACE_VARIABLE, this_site
from kubetrain_pipelines.local_run.storage import with_local_uris
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.settings.config import TrainConfig

PLACE = DatasetPlace(digest="0123456789abcdef", claim="ds-digits", sub_path="versions/d/data")
NO_MODEL = TrainConfig(entry={"script": "train.py"}, publishes=False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"framework": "jax"}, "unknown framework 'jax'"),
        ({"train_config": TrainConfig(model="keras:resnet50")}, "is for tensorflow"),
        ({"workers": 0}, "pods.workers must be at least 1, not 0"),
        ({"workers": True}, "pods.workers must be a whole number, not True"),
        ({"min_workers": -1}, "pods.min_workers must be at least 0, not -1"),
        ({"min_workers": 3}, "pods.min_workers is 3, more than pods.workers, 2"),
        ({"min_workers": 1, "max_workers": 1}, "pods.max_workers is 1, less than pods.workers, 2"),
        ({"max_workers": 4}, "pods.max_workers is 4, but only an elastic job grows"),
        ({"max_workers": "4"}, "pods.max_workers must be a whole number, not '4'"),
        (
            {"launcher": "kueue"},
            "pods.launcher cannot be 'kueue': valid names: auto, job, ray, trainer, training-operator",
        ),
        ({"framework": "tensorflow", "processes_per_worker": 2}, "uses every GPU of its pod"),
        ({"model_uri": ""}, "model.uri is empty"),
        ({"model_uri": "s3://b/p"}, "model.uri 's3://b/p' is inside data.uri 's3://b/p'"),
        ({"model_uri": "s3://b/p//models/"}, "is inside data.uri"),
        ({"dataset_uri": "data", "model_uri": "data/../data/workspace/models"}, "is inside data.uri 'data'"),
        ({"dataset_uri": "ftp://x"}, "data.uri 'ftp://x'"),
        ({"run_id": "../../escape"}, r"run ID '../../escape'"),
        ({"train_config": NO_MODEL, "gate": "accuracy>0.9"}, "model.gate and train.skip_unchanged need a model"),
        ({"train_config": NO_MODEL, "skip_unchanged": True}, "model.gate and train.skip_unchanged need a model"),
    ],
)
def test_every_parameter_is_checked_before_anything_is_created(changes: dict[str, object], says: str) -> None:
    valid = {"dataset_uri": "s3://b/p", "framework": "pytorch", "model_uri": "s3://b/m", "workers": 2}
    with pytest.raises(InvalidSetting, match=says):
        RunParameters(**{**valid, **changes})


def test_a_run_that_only_syncs_needs_only_its_source() -> None:
    RunParameters(dataset_uri="s3://b/p")


def test_a_missing_split_is_found_in_the_listing() -> None:
    run = RunParameters(dataset_uri="s3://b/p", framework="pytorch", model_uri="s3://b/m")
    run.check_folders(["test", "train", "val"])
    with pytest.raises(KubetrainError, match=r"no folder 'val' for data.validation_split \(it has: test, train\)"):
        run.check_folders(["test", "train"])


@pytest.mark.parametrize("config", [TrainConfig(model="own.task:build"), TrainConfig(data="synthetic")])
def test_a_custom_task_or_synthetic_data_needs_no_splits(config: TrainConfig) -> None:
    run = RunParameters(dataset_uri="s3://b/p", framework="pytorch", model_uri="s3://b/m", train_config=config)
    run.check_folders(["anything"])


class TestLocalUris:
    def test_without_a_dataset_the_run_uses_the_embedded_s3_server(self, tmp_path: Path) -> None:
        assert with_local_uris({"pods": {"workers": 3}}, "train-pytorch", tmp_path) == {
            "data": {"uri": "s3://datasets/digits"},
            "model": {"uri": "s3://models/train-pytorch"},
            "pods": {"workers": 3},
        }

    @pytest.mark.parametrize(
        ("group", "name", "value"), [("data", "endpoint", "http://s3"), ("model", "uri", "s3://b/m")]
    )
    def test_a_store_of_your_own_needs_a_dataset(self, group: str, name: str, value: str, tmp_path: Path) -> None:
        with pytest.raises(InvalidSetting, match=f"{group}.{name} is set without data.uri: set both"):
            with_local_uris({group: {name: value}}, "train-pytorch", tmp_path)

    def test_a_folder_needs_no_s3(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        uris = with_local_uris({"data": {"uri": "images"}}, "train-pytorch", tmp_path)
        assert uris["data"]["uri"] == str(tmp_path / "images")
        assert uris["model"]["uri"] == (tmp_path / "models" / "train-pytorch").as_uri()

    def test_your_own_bucket_is_used_as_given(self, tmp_path: Path) -> None:
        given = {"data": {"uri": "s3://b/p", "endpoint": "http://s3"}, "model": {"uri": "s3://b/m"}}
        assert with_local_uris(given, "train-pytorch", tmp_path) == given


class TestSite:
    def test_on_one_machine_folders_replace_the_pvcs(self, tmp_path: Path) -> None:
        site = this_site({WORKSPACE_VARIABLE: str(tmp_path)})
        assert site.data_dir(PLACE) == tmp_path / "staging" / "versions" / PLACE.digest / "data"
        assert site.output_dir("run") == tmp_path / "output" / "run"
        assert site.mounts(PLACE, "out") == ()

    def test_on_a_cluster_pods_mount_pvcs(self) -> None:
        site = this_site({})
        assert (site.data_dir(PLACE), site.output_dir("run")) == (Path("/data"), Path("/output/run"))
        data, output = site.mounts(PLACE, "out")
        assert (data.claim, data.sub_path, data.path, data.read_only) == ("ds-digits", "versions/d/data", "/data", True)
        assert (output.claim, output.sub_path, output.path, output.read_only) == ("out", "", "/output", False)


def test_each_name_means_one_thing() -> None:
    names = [kind.public_name(name) for kind in KINDS for name in kind.names()]
    fields = [name.replace(".", "_") for name in names] + [f"{group}_more" for group in GROUPS]
    assert len(fields) == len(set(fields))
    assert {name.partition(".")[0] for name in names} == GROUPS.keys()
