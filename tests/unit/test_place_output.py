"""The pods of a run whose output is in a store: each has a disk of its own, and a sidecar that has the credentials."""

from typing import Any

import pytest

from kubetrain_components.run.request import merged
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.output.output_store import VARIABLE
from support.cli import kubetrain
from support.planned import admitted_manifests, specs

SECRET = [{"secretRef": {"name": "kubetrain-s3", "optional": True}}]


def planned(framework: str = "pytorch", launcher: str = "job", **groups: dict[str, Any]) -> list[dict[str, Any]]:
    request = {
        "data": {"uri": "s3://bucket/flowers", "endpoint": "http://s3:9000"},
        "model": {"uri": "s3://bucket/models"},
        "pods": {"launcher": launcher},
        "storage": {"output": "s3://bucket/outputs", "output_size": "20Gi"},
    }
    return admitted_manifests(merged(request, groups), framework)


@pytest.mark.parametrize("launcher", ["training-operator", "trainer", "job"])
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_training_and_evaluation_write_to_their_own_disks(framework: str, launcher: str) -> None:
    manifests = planned(framework, launcher)
    claims = [each["metadata"]["name"] for each in manifests if each["kind"] == "PersistentVolumeClaim"]
    assert claims == ["kubetrain-staging"]
    pods = {
        f"{each['metadata']['name']}{path}": spec
        for each in manifests
        for path, spec in specs(each)
        if any(stage in each["metadata"]["name"] for stage in ("launch-training", "evaluate-model"))
    }
    kept = [spec for spec in pods.values() if spec.get("initContainers")]
    assert len(kept) >= 2
    for spec in kept:
        [sidecar] = [each for each in spec["initContainers"] if each["name"] == "kubetrain-output"]
        assert sidecar["restartPolicy"] == "Always"
        assert sidecar["image"] == "components:1"
        assert sidecar["envFrom"] == SECRET
        assert sidecar["command"][2:] == [
            *("kubetrain_components.keep_output.serve", "--uri", "s3://bucket/outputs"),
            *("--endpoint", "http://s3:9000", "--to", "/output"),
        ]
        main = spec["containers"][0]
        assert "envFrom" not in main
        assert {"name": VARIABLE, "value": "/output"} in main["env"]
        assert {"name": "kubetrain-output", "mountPath": "/output"} in main["volumeMounts"]
        assert {"name": "kubetrain-output", "emptyDir": {"sizeLimit": "20Gi"}} in spec["volumes"]
        assert "kubetrain-output" not in str([each.get("persistentVolumeClaim") for each in spec["volumes"]])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"storage": {"output": "hf://datasets/me/data"}}, "storage.output .* can only be read"),
        ({"storage": {"output": "/output"}}, "storage.output '/output' is the path of a directory"),
        ({"model": {"start": "s3://bucket/weights"}}, "storage.output: weights of model.start"),
        ({"pods": {"launcher": "ray"}, "train": {"entry": "train.py"}}, "pods.launcher=ray saves to a PVC"),
    ],
)
def test_what_cannot_be_kept_is_refused(groups: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        planned(**groups)


def test_one_training_needs_no_claim() -> None:
    asked = ["train", "--cluster", "--dry-run", "--set", "data.format=synthetic", "--output", "s3://bucket/outputs"]
    shown = kubetrain(*asked, "--set", "data.endpoint=http://s3:9000", "--set", "pods.launcher=job").output
    assert "persistentVolumeClaim" not in shown
    assert "http://s3:9000" in shown
    named = kubetrain(*asked[:-2], "--set", "storage.output=s3://bucket/outputs", "--set", "pods.launcher=job").output
    assert "keep_output.serve" in named
    assert "only a whole run" not in named
