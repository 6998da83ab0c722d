"""Initial weights in S3: an object or a published model, which the transfer brings to the outputs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import PermissionDenied
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sync_dataset.sync import transfer_job
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_components.sync_dataset.weights import find_weights, with_brought_weights
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.output.model_folder import open_model
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.termination import LOG_VARIABLE
from support.faulty_s3 import FaultyS3, cut_short
from support.model_files import publish

PARAMETERS = RunParameters(
    dataset_uri="s3://bucket/data",
    framework="pytorch",
    model_uri="s3://bucket/models",
    run_id="r",
    train_config=TrainConfig(initial_weights="s3://bucket/pretrained/resnet.pt"),
)


def brought(uri: str, folder: Path) -> Path:
    store, name = find_weights(uri, "")
    return folder / "versions" / transfer_dataset(store, folder).digest / "data" / name


def test_an_object_is_brought_without_its_neighbors(tmp_path: Path) -> None:
    source = open_store(str(tmp_path / "source"))
    for key in ("resnet.pt", "resnet.pt.old", "huge"):
        source.write(key, key.encode())
    path = brought(f"{tmp_path}/source/resnet.pt", tmp_path / "brought")
    assert path.read_bytes() == b"resnet.pt"
    assert [each.name for each in path.parent.iterdir()] == ["resnet.pt"]


@pytest.mark.parametrize("place", ["models/v1", "models/v1/", "models"])
def test_a_published_model_is_brought_whole(place: str, tmp_path: Path) -> None:
    models = open_store(str(tmp_path / "models"))
    models.write("v0/model.pt", b"another")
    publish(models, "v1")
    model = open_model(brought(f"{tmp_path}/{place}", tmp_path / "brought"))
    assert model.description["version"] == "v1"


def test_other_folders_are_refused_before_anything_is_downloaded(tmp_path: Path) -> None:
    open_store(str(tmp_path / "folder")).write("resnet.pt", b"x")
    with pytest.raises(InvalidSetting, match=r"/folder is neither an object nor a published model \(a folder with "):
        find_weights(str(tmp_path / "folder"), "")


def test_permissions_for_what_is_named_are_enough(s3_credentials: None) -> None:
    """S3 refuses to say whether an object exists to those who may not list its bucket."""
    store = FaultyS3()
    store.put("pretrained/resnet.pt", b"x")
    store.refused = {f"{each}{file}" for each in ("models", "flowers.v2") for file in ("", "/model.json")}
    store.refused |= {f"pretrained/resnet.pt/{file}.json" for file in ("model", "latest")}
    with store.serving() as url:
        assert find_weights("s3://bucket/pretrained/resnet.pt", url)[1] == "resnet.pt"
        for folder in ("models", "flowers.v2"):
            publish(open_store(f"s3://bucket/{folder}", url), "v1")
            found, _ = find_weights(f"s3://bucket/{folder}/", url)
            assert found.uri.rstrip("/") == f"s3://bucket/{folder}/v1"


def test_a_refusal_is_reported_if_nothing_is_found(s3_credentials: None) -> None:
    store = FaultyS3()
    store.refused = {"pretrained/resnet.pt"}
    with store.serving() as url, pytest.raises(PermissionDenied, match=r"access to object 'resnet.pt' .* denied"):
        find_weights("s3://bucket/pretrained/resnet.pt", url)


def test_new_content_changes_the_settings_so_that_a_model_is_not_reused(tmp_path: Path) -> None:
    def digest_now() -> str:
        place = brought(f"{tmp_path}/weights.pt", tmp_path / "brought").relative_to(tmp_path)
        return with_brought_weights(PARAMETERS, str(place)).train_config.digest

    source = open_store(str(tmp_path))
    source.write("weights.pt", b"one")
    first = digest_now()
    assert digest_now() == first
    source.write("weights.pt", b"two")
    assert digest_now() != first
    assert with_brought_weights(PARAMETERS, "") is PARAMETERS


def test_the_transfer_reports_where_the_weights_are(tmp_path: Path) -> None:
    (tmp_path / "message").touch()
    result = run_transfer(store := FaultyS3(), tmp_path)
    assert result["weights"] == f".weights/versions/{result['weights'].split('/')[2]}/data/resnet.pt"
    assert (tmp_path / "output" / result["weights"]).read_bytes() == b"weights" * 1000
    assert store.gets("pretrained/resnet.pt")


def run_transfer(store: FaultyS3, folder: Path) -> dict[str, Any]:
    """Run the transfer, which the store once sends only a part of the weights."""
    store.put("data/key", b"x")
    store.put("pretrained/resnet.pt", b"weights" * 1000)
    store.fail("pretrained/resnet.pt", cut_short(after=100))
    with store.serving() as url:
        (replica,) = transfer_job(replace(PARAMETERS, s3_endpoint=url), folder / "staging", folder / "output").replicas
        credentials = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        environment = {"PATH": "/usr/bin:/bin", **credentials, LOG_VARIABLE: str(folder / "message")}
        subprocess.run([sys.executable, *replica.command[1:]], env=environment, check=True)
    message: dict[str, Any] = json.loads((folder / "message").read_text())
    return message


def test_a_uri_that_names_no_bucket_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"model\.start 's3://' has no bucket"):
        replace(PARAMETERS, train_config=TrainConfig(initial_weights="s3://"))
