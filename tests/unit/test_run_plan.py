"""The plan of everything that a run creates on a cluster."""

from typing import Any

import pytest

from kubetrain_components.run.admission import admit_run
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_trainer.errors import InvalidSetting


def plan(**changes: Any) -> list[dict[str, Any]]:
    uris = {"dataset_uri": "s3://bucket/Digits v2/", "model_uri": "s3://bucket/models"}
    names = {"pipeline": "train-pytorch", "run_id": "5f2c", "framework": "pytorch"}
    images = {"components_image": "components:1", "trainer_image": "trainer:1"}
    settings: dict[str, Any] = {"placement": {}, "storage": {}, "train_config": {}, "workers": 2}
    return planned_manifests(admit_run(**{**uris, **names, **images, **settings, **changes}))


def images(manifest: dict[str, Any]) -> set[str]:
    spec = manifest["spec"]
    templates = [each["template"] for each in spec.get("pytorchReplicaSpecs", {"": spec}).values()]
    return {container["image"] for template in templates for container in template["spec"]["containers"]}


def test_a_training_run_creates_two_pvcs_and_three_jobs() -> None:
    made = plan(staging_claim="stage", output_claim="out")
    names = [(each["kind"], each["metadata"]["name"].rsplit("-", 2)[0]) for each in made]
    assert names[:2] == [("PersistentVolumeClaim", "stage"), ("PersistentVolumeClaim", "out")]
    assert names[2:] == [
        ("Job", "train-pytorch-sync-dataset"),
        ("PyTorchJob", "train-pytorch-launch-training"),
        ("Job", "train-pytorch-evaluate-model"),
    ]
    assert [images(each) for each in made[2:]] == [{"components:1"}, {"trainer:1"}, {"trainer:1"}]


def test_training_pods_mount_the_version_read_only_and_the_output() -> None:
    master = plan()[3]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    data, output = (each["persistentVolumeClaim"] for each in master["volumes"][:2])
    assert data == {"claimName": "ds-digits-v2-0000000000000000", "readOnly": True}
    assert output == {"claimName": "kubetrain-output"}
    mounts = master["containers"][0]["volumeMounts"]
    assert (mounts[0]["mountPath"], mounts[0]["subPath"]) == ("/data", "versions/0000000000000000/data")
    assert mounts[1]["mountPath"] == "/output"


def test_a_custom_image_trains_and_evaluates() -> None:
    assert [images(each) for each in plan(placement={"image": "mine:2"})[3:]] == [{"mine:2"}, {"mine:2"}]


def test_a_sync_only_run_creates_one_pvc_and_one_job() -> None:
    assert [each["kind"] for each in plan(framework="")] == ["PersistentVolumeClaim", "Job"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"placement": {"restart_policy": "Always"}}, "restart_policy Always"),
        ({"placement": {"env": {"MASTER_ADDR": "x"}}}, "MASTER_ADDR is set by the operator"),
        ({"storage": {"exposure": "static"}}, "exposure 'static'.*static_claim"),
        ({"storage": {"transfer": {"memory": "much"}}}, "memory 'much' is not a Kubernetes quantity"),
        ({"staging_size": "big"}, "'big' is not a Kubernetes quantity"),
        ({"train_config": {"epoch": 1}}, "unknown setting 'epoch'"),
        ({"min_accuracy": 1.5}, "min_accuracy must be a number from 0 to 1"),
        ({"model_uri": "gs://bucket"}, "model_uri 'gs://bucket'"),
        ({"memory": "1Gi", "placement": {"memory": "2Gi"}}, "set it in one place"),
    ],
)
def test_settings_that_would_fail_hours_later_are_refused_first(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        plan(**changes)
