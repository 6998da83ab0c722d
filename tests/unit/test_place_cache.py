"""The pods of a run whose shards stay in S3: a sidecar with the rights to S3 fills a cache for the training."""

from typing import Any

import pytest

from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.run.request import merged, parameters_of
from kubetrain_trainer.data.shard_cache import VARIABLE
from kubetrain_trainer.errors import InvalidSetting
from support.cli import kubetrain
from support.planned import admitted_manifests, specs

CACHE = {"format": "tar_shards", "delivery": "cache", "cache_gb": 50}
SECRET = [{"secretRef": {"name": "kubetrain-s3", "optional": True}}]
MOUNT = {"name": "kubetrain-shard-cache", "mountPath": "/shard-cache"}


def pods(framework: str, launcher: str, **groups: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the specs of the pods of the planned jobs, by their place in the manifests."""
    data = {"uri": "s3://bucket/flowers", "access": "requester-pays", "endpoint": "http://s3:9000", **CACHE}
    request = {"data": data, "model": {"uri": "s3://bucket/models"}, "pods": {"launcher": launcher}}
    return {
        f"{each['kind']} {each['metadata']['name']}{path}": spec
        for each in admitted_manifests(merged(request, groups), framework)
        for path, spec in specs(each)
    }


@pytest.mark.parametrize("launcher", ["training-operator", "trainer", "job"])
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_training_and_evaluation_have_a_sidecar_that_alone_has_the_secret(framework: str, launcher: str) -> None:
    found = pods(framework, launcher)
    training = {name: spec for name, spec in found.items() if "launch-training" in name and spec["initContainers"]}
    evaluation = {name: spec for name, spec in found.items() if "evaluate-model" in name}
    assert training
    assert evaluation
    for spec in [*training.values(), *evaluation.values()]:
        [sidecar] = [each for each in spec["initContainers"] if each["name"] == "kubetrain-shard-cache"]
        assert sidecar["restartPolicy"] == "Always"
        assert sidecar["image"] == "components:1"
        assert sidecar["envFrom"] == SECRET
        assert sidecar["command"][2:] == [
            *("kubetrain_components.serve_shards.serve", "--uri", "s3://bucket/flowers"),
            *("--endpoint", "http://s3:9000", "--access", "requester-pays"),
            *("--cache-bytes", "50000000000", "--to", "/shard-cache"),
        ]
        assert sidecar["volumeMounts"] == [MOUNT]
        assert sidecar["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert sidecar["resources"] == {
            "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "51073741824"},
            "limits": {"cpu": "1", "memory": "1Gi"},
        }
        [main] = spec["containers"]
        assert "envFrom" not in main
        assert {"name": VARIABLE, "value": "/shard-cache"} in main["env"]
        assert {**MOUNT, "readOnly": True} in main["volumeMounts"]
        assert {"name": MOUNT["name"], "emptyDir": {"sizeLimit": "51073741824"}} in spec["volumes"]


def test_the_sync_knows_that_the_shards_stay() -> None:
    [sync] = [spec for name, spec in pods("pytorch", "job").items() if "sync-dataset" in name]
    command = " ".join(sync["containers"][0]["command"])
    assert "--cache-bytes 50000000000" in command
    assert "initContainers" not in sync


def test_pods_that_read_no_data_have_no_cache() -> None:
    found = pods("pytorch", "job", model={"name": "team.task:build"})
    [check] = [spec for name, spec in found.items() if "import" in name]
    assert "kubetrain-shard-cache" not in str(check)


def test_volumes_of_the_transfer_are_mounted_by_the_sidecar_too() -> None:
    ca = {"name": "ca", "configMap": {"name": "ca"}}
    transfer = {"cpu": "2", "pod": pod_patch({"volumes": [ca]}, {"volumeMounts": [{"name": "ca", "mountPath": "/ca"}]})}
    code = {"train": {"code": "0123456789abcdef0123456789abcdef"}, "model": {"name": "team.task:build"}}
    found = pods("pytorch", "job", storage={"transfer": transfer}, **code)
    [training] = [spec for name, spec in found.items() if "launch-training" in name]
    assert training["volumes"].count(ca) == 1
    for container in training["initContainers"]:
        assert {"name": "ca", "mountPath": "/ca"} in container["volumeMounts"]
    assert training["initContainers"][1]["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}


def test_resources_that_the_transfer_leaves_out_are_not_requested() -> None:
    found = pods("pytorch", "job", storage={"transfer": {"cpu": "", "memory": "2Gi"}})
    [training] = [spec for name, spec in found.items() if "launch-training" in name]
    [sidecar] = [each for each in training["initContainers"] if each["name"] == MOUNT["name"]]
    assert sidecar["resources"]["requests"] == {"memory": "2Gi", "ephemeral-storage": "51073741824"}
    assert sidecar["resources"]["limits"] == {"memory": "2Gi"}


def test_a_mount_of_your_own_in_its_place_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="two volumes of a pod are mounted at /shard-cache"):
        pods(
            "pytorch",
            "job",
            pods={"pod": pod_patch({}, {"volumeMounts": [{"name": "own", "mountPath": "/shard-cache/"}]})},
        )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"data": {"format": "image_folder"}}, "data.delivery=cache needs data.format=tar_shards, not image_folder"),
        ({"train": {"entry": {"script": "train.py"}}}, "data.delivery must be volume: only the trainer's loop"),
        ({"data": {"cache_gb": 0}}, "data.cache_gb must be above 0, not 0"),
    ],
)
def test_contradictions_are_refused(groups: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        parameters_of(merged({"data": CACHE}, groups))


def test_a_job_without_a_sync_is_refused() -> None:
    settings = ("--set", "data.format=tar_shards", "--set", "data.delivery=cache")
    refused = kubetrain("train", "--data", "/data", "--output", "/output", *settings)
    assert refused.exit_code == 2
    assert "data.delivery=cache: only runs of a pipeline list the shards in S3: use `kubetrain run`" in refused.output
