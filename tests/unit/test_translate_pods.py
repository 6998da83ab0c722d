"""`kubetrain translate`: fields of pods and of jobs that need more than a setting of the same name."""

import json
from typing import Any

from kubetrain_pipelines.translate.read_manifests import read_manifests
from kubetrain_pipelines.translate.translation import Translation, translate

Manifest = dict[str, Any]


def pod(container: Manifest | None = None, **spec: Any) -> Manifest:
    main = {"name": "pytorch", "image": "a", "command": ["python", "train.py"], **(container or {})}
    return {"spec": {"containers": [main, *spec.pop("sidecars", [])], **spec}}


def pytorch_job(
    template: Manifest, workers: int = 2, labels: Manifest | None = None, master: Manifest | None = None, **spec: Any
) -> Translation:
    roles = {"Worker": {"replicas": workers, "template": template}}
    if master:
        roles["Master"] = {"template": master}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "flowers", "labels": labels or {}},
        "spec": {"pytorchReplicaSpecs": roles, **spec},
    }
    return translate(read_manifests([("job.yaml", json.dumps(job))]))


def placement_of(translation: Translation) -> dict[str, Any]:
    return {**translation.parameters, **translation.parameters["placement"]}


def named(translation: Translation) -> dict[str, str]:
    """The fields without a counterpart, by the end of their path."""
    return {each.path.replace("spec.pytorchReplicaSpecs.", ""): each.instead for each in translation.unmapped}


def test_small_requests_and_limits_are_kept() -> None:
    amounts = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "500m", "memory": "2Gi"}}
    settings = placement_of(pytorch_job(pod({"resources": amounts})))
    assert (settings["cpu"], settings["cpu_limit"]) == ("250m", "500m")
    assert (settings["memory"], settings["memory_limit"]) == ("1Gi", "2Gi")
