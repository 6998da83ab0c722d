"""The settings of a run and of the launch task of a custom pipeline, combined."""

from typing import Any

import pytest

from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.run.combined_settings import combine_settings, placement_settings, without_mlflow
from kubetrain_trainer.errors import InvalidSetting


def placed(run: dict[str, Any], task: dict[str, Any]) -> Placement:
    return combine_settings(Placement, {"the run": run, "the launch task": task})


def test_equal_values_of_two_sources_are_accepted() -> None:
    assert placed({"gpus": 2}, {"gpus": 2.0}).gpus == 2


@pytest.mark.parametrize(
    ("run", "task", "says"),
    [
        ({"memory": "8Gi"}, {"memory": "16Gi"}, "pods.memory is '8Gi' in the run but '16Gi' in the launch task: set"),
        ({"memory": "8Gi"}, {"memory": "4Gi"}, "is '8Gi' in the run but '4Gi' in the launch task"),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"A": "1", "B": "3"}}, "pods.env B is '2' in the run but '3'"),
        ({}, {"memry": "1"}, "unknown setting 'pods.memry'"),
        ({"gpus": -1}, {}, "pods.gpus must be at least 0"),
    ],
)
def test_contradictions_are_refused(run: dict[str, Any], task: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        placed(run, task)


def test_lists_and_objects_add_up() -> None:
    gpu, spot = ({"key": key, "operator": "Exists"} for key in ("gpu", "spot"))
    first = pod_patch({"tolerations": [gpu]}, {"volumeMounts": [{"name": "a", "mountPath": "/a"}]}, labels={"a": "1"})
    second = pod_patch({"tolerations": [gpu, spot]}, {"imagePullPolicy": "Always"}, labels={"b": "2"})
    made = placed({"pod": first}, {"pod": second})
    assert made.spec["tolerations"] == [gpu, spot]
    assert made.labels == {"a": "1", "b": "2"}
    assert made.main == {
        "name": "main",
        "volumeMounts": [{"name": "a", "mountPath": "/a"}],
        "imagePullPolicy": "Always",
    }
    with pytest.raises(InvalidSetting, match=r"pod spec containers main imagePullPolicy is 'Never' in .* but 'Always'"):
        placed({"pod": pod_patch(main={"imagePullPolicy": "Never"})}, {"pod": second})


@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "amd.com/gpu", "gpu.intel.com/i915"]
)
def test_slices_and_shared_gpus_of_the_launch_task_are_gpus(name: str) -> None:
    settings = placement_settings({"resources": {"limits": {name: "2", "x/y": "3"}}})
    assert settings == {"gpus": 2, "gpu_resource": name, "pod": pod_patch({}, {"resources": {"limits": {"x/y": "3"}}})}


def limited(name: str, limit: str) -> dict[str, Any]:
    return pod_patch(main={"resources": {"limits": {name: limit}}})


@pytest.mark.parametrize("pair", [("cpu", "8", "4"), ("cpu", "1", "500m"), ("memory", "4Gi", "2G")], ids=str)
def test_a_limit_below_its_request_is_an_error(pair: tuple[str, str, str]) -> None:
    name, request, limit = pair
    with pytest.raises(InvalidSetting, match=f"{name} '{limit}' is less than .*{name} '{request}'"):
        Placement(**{name: request, "pod": limited(name, limit)})


@pytest.mark.parametrize("name", ["cpu", "memory"])
def test_a_limit_counts_with_the_request_of_another_source(name: str) -> None:
    pod = {"pod": limited(name, "500m")}
    assert placed({name: "200m"}, pod).changed_settings() == {name: "200m", **pod}
    assert placed({"memory": "8Gi"}, {"queue": "q"} | {"scheduler": "kueue"}).queue == "q"
    with pytest.raises(InvalidSetting, match=f"{name} '500m' is less than .*{name} '"):
        placed({}, pod)


def test_settings_of_the_launch_task_apply_to_its_workers() -> None:
    volume = {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}
    mount = {"name": "cache", "mountPath": "/cache"}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    exact = {"amd.com/gpu": "8", "rdma/hca_0": "1", "rdma/hca_1": "1", "x/y": "3"}
    settings = placement_settings(
        {
            "resources": {
                "requests": {"cpu": "8"},
                "limits": {"cpu": "16", "memory": "64Gi", **exact},
            },
            "env": [
                {"name": "PLAIN", "value": "1"},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
            ],
            "affinity": affinity,
            "tolerations": [{"key": "gpu"}],
            "node_selector": {"pool": "gpu"},
            "volumes": [volume],
            "volume_mounts": [mount],
        }
    )
    placement = placed({"image": "i"}, settings)
    replica = Replica(role="Master", count=1, command=("train",))
    identity = JobIdentity(pipeline="p", stage="s", run_id="r")
    job = Job(identity=identity, kind=JobKind.PYTORCH_JOB, replicas=(replica,), placement=placement)
    spec = pod_template(job, replica)["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert container["resources"] == {
        "requests": {"cpu": "8", "memory": "64Gi", **exact},
        "limits": {"cpu": "16", "memory": "64Gi", **exact},
    }
    assert {"name": "PLAIN", "value": "1"} in container["env"]
    secret = {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}
    assert {"name": "SECRET", "valueFrom": secret} in container["env"]
    assert (spec["affinity"], spec["tolerations"]) == (affinity, [{"key": "gpu"}])
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert volume in spec["volumes"]
    assert mount in container["volumeMounts"]


def test_a_task_without_settings_changes_nothing() -> None:
    nothing = dict.fromkeys(
        ("affinity", "tolerations", "node_selector", "env", "volumes", "volume_mounts", "resources")
    )
    assert placement_settings(nothing) == {}


def from_mlflow_secret(key: str) -> dict[str, Any]:
    return {"valueFrom": {"secretKeyRef": {"name": "kfp-mlflow-credentials", "key": key}}}


OF_KFP = {
    "env": [
        {"name": "OWN", "value": "1"},
        {"name": "MLFLOW_RUN_ID", "value": "7"},
        {"name": "MLFLOW_TRACKING_URI", "value": "http://mlflow.mlflow:5000"},
        {"name": "MLFLOW_EXPERIMENT_ID", "value": "1"},
        {"name": "MLFLOW_TRACKING_TOKEN", **from_mlflow_secret("token")},
    ]
}
"""What Kubeflow Pipelines 2.17 adds to a task, with authType bearer."""


def env_of_pods(placement: dict[str, Any]) -> list[dict[str, Any]]:
    made = placed(placement, without_mlflow(placement_settings(OF_KFP), placement))
    replica = Replica(role="Master", count=1, command=("train",))
    identity = JobIdentity(pipeline="p", stage="s", run_id="r")
    job = Job(identity=identity, kind=JobKind.PYTORCH_JOB, replicas=(replica,), placement=made)
    environment: list[dict[str, Any]] = pod_template(job, replica)["spec"]["containers"][0]["env"]
    return environment


def test_pods_get_the_mlflow_run_of_kubeflow_pipelines_and_its_token_from_the_secret() -> None:
    environment = env_of_pods({"env": {"MINE": "2"}})
    assert all(each in environment for each in OF_KFP["env"])
    assert {"name": "MINE", "value": "2"} in environment


@pytest.mark.parametrize(
    "own",
    [
        {"env": {"MLFLOW_TRACKING_URI": "http://own"}},
        {"secret_env": {"MLFLOW_TRACKING_TOKEN": "my-secret/token"}},
    ],
)
def test_an_mlflow_server_of_your_own_replaces_that_of_kubeflow_pipelines(own: dict[str, Any]) -> None:
    names = [each["name"] for each in env_of_pods(own)]
    assert {"OWN", *(name for settings in own.values() for name in settings)} < {*names}
    assert "MLFLOW_RUN_ID" not in names
