"""The users of PVCs on a cluster: what is kept of them decides the same as all of it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims, evidence_of_use
from kubetrain_components.expose_dataset.prune import uses_of
from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes.errors import Forbidden
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest
from support.api_server import PODS, ApiServer, answer, not_served
from support.manifests import batch, elastic, indexed, pytorch, tensorflow, trainjob

NOW = datetime(2026, 11, 21, tzinfo=UTC)
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "staging"}}
BULK = {"managedFields": [{"fieldsV1": {f"f:{number}": {} for number in range(200)}}]}


def pod(name: str, *mounts: dict[str, str], containers: str = "containers", **status: str) -> dict[str, Any]:
    env = [{"name": f"VARIABLE_{number}", "value": "x" * 50} for number in range(100)]
    own = {"name": "main", "env": env, "volumeMounts": [{"mountPath": "/data", **mount} for mount in mounts]}
    volumes = [CLAIM, {"name": "scratch", "emptyDir": {}}]
    labels = {"kubetrain/dataset": "0123456789abcdef"} if name == "labeled" else {}
    return {
        "metadata": {"name": name, "labels": labels, **BULK},
        "spec": {containers: [own], "volumes": volumes},
        "status": status,
    }


DATA, PART = {"name": "data"}, {"name": "data", "subPath": "digits/0123456789abcdef"}
USERS = [
    pod("whole", DATA, phase="Running"),
    pod("part", PART, {"name": "scratch"}, phase="Pending"),
    pod("first", PART, containers="initContainers"),
    pod("unmounted"),
    pod("over", DATA, phase="Succeeded"),
    pod("labeled", phase="Running"),
    {"metadata": {"name": "bare"}, "spec": {"containers": []}},
    {
        "metadata": {"name": "nightly"},
        "spec": {"jobTemplate": {"spec": {"template": {"spec": pod("x", DATA)["spec"]}}}},
    },
    *(job_manifest(job) for job in (pytorch(), elastic(), tensorflow(), batch(), indexed(), trainjob())),
]


@pytest.mark.parametrize("user", USERS, ids=lambda user: user["metadata"]["name"])
def test_the_kept_part_of_a_user_tells_the_same_uses(user: dict[str, Any]) -> None:
    kept = evidence_of_use(user)
    kind = {"kind": user.get("kind", "Pod")}
    assert uses_of([kept | kind], NOW) == uses_of([user | kind], NOW)
    assert len(json.dumps(kept)) < max(0.1 * len(json.dumps(user)), 1500)


def test_a_train_job_uses_its_dataset_version_before_it_has_pods() -> None:
    """Its runtime has the volumes, so that its label says which version it uses."""
    waiting = evidence_of_use(job_manifest(trainjob())) | {"kind": "TrainJob"}
    assert [(use.digest, use.claim) for use in uses_of([waiting], NOW)] == [("0123456789abcdef", "")]


def test_a_cluster_without_trainer_may_refuse_to_list_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = "/apis/trainer.kubeflow.org/v1alpha1"
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        server.put(f"{PODS}/whole", **USERS[0])
        refusal = answer(403, 'User "me" cannot list resource "trainjobs" in API group "trainer.kubeflow.org"')
        server.fail(f"{trainer}/namespaces/tests/trainjobs", refusal, times=2)
        server.fail(f"GET {trainer}", not_served)
        assert [each["metadata"]["name"] for each in KubernetesClaims.connect().users()] == ["whole"]
        server.put(trainer, resources=[{"name": "trainjobs"}])
        with pytest.raises(Forbidden, match="me may not list trainjobs"):
            KubernetesClaims.connect().users()


def test_all_users_are_listed_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "PAGE_SIZE", 2)
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        for user in USERS[:5]:
            server.put(f"{PODS}/{user['metadata']['name']}", **user)
        found = KubernetesClaims.connect().users()
        pages = [line for line in server.requests if line.startswith(f"GET {PODS}?")]
    assert [each["metadata"]["name"] for each in found] == ["whole", "part", "first", "unmounted", "over"]
    assert {each["kind"] for each in found} == {"Pod"}
    assert len(pages) == 3


def test_only_the_pvc_that_was_seen_is_annotated_or_deleted(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    claims, path = KubernetesClaims.connect(), "/api/v1/namespaces/tests/persistentvolumeclaims/data"
    server.put(path, kind="PersistentVolumeClaim")
    seen = claims.find("data")
    assert seen is not None
    server.put(path, kind="PersistentVolumeClaim", spec={"volumeName": "pv"})
    assert not claims.delete("data", seen["metadata"]), "it has changed since"
    server.remove(path)
    server.put(path, kind="PersistentVolumeClaim")
    assert claims.annotate(seen, {"kubetrain/last-used": "now"}) is None
    assert "annotations" not in server.objects[path]["metadata"]
