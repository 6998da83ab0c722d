"""Syncs from S3 to a PVC that training pods mount read-only, on a real cluster."""

import multiprocessing
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.expose_dataset import prune
from kubetrain_components.expose_dataset.claims import CLAIM
from kubetrain_components.expose_dataset.ensure_claim import ensure_claim
from kubetrain_components.expose_dataset.expose_version import expose_version
from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.object_store.credentials import DEFAULT_SECRET
from kubetrain_trainer.errors import KubetrainError
from support.claims_contract import settled
from support.cluster import Bucket, as_account, pods_job
from support.cluster_data import sync

pytestmark = [pytest.mark.cluster, pytest.mark.core]

ROLES = [Path(__file__).parents[2] / "deploy" / "rbac" / name for name in ("launch.yaml", "account.yaml")]
FILES = {f"{split}/{label}/1.png": f"{split} {label}".encode() for split in ("train", "val", "test") for label in "ab"}
STORAGE = Storage(staging_size="1Gi", output_size="1Gi")
READ_THEN_WRITE = """
import errno, pathlib
print(pathlib.Path("/data/train/a/1.png").read_text())
try:
    pathlib.Path("/data/more").write_text("x")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
MAKE_OLD = """
import json, os, pathlib
for number, version in enumerate(sorted(pathlib.Path("/staging/versions").iterdir())):
    header, *lines = (version / "manifest.jsonl").read_text().splitlines()
    (version / "manifest.jsonl").unlink()
    header = json.dumps(json.loads(header) | {"created": f"2020-01-0{number + 1}T00:00:00Z"})
    (version / "manifest.jsonl").write_text("\\n".join([header, *lines, ""]))
    os.utime(version, (0, 0))
"""
LIST = 'import glob; print(*sorted(path[18:] for path in glob.glob("/staging/versions/*")))'

spawned = multiprocessing.get_context("spawn")


def sync_in_a_process(namespace: str, bucket: str) -> None:
    sync(KubernetesApi.connect(namespace), bucket, "run-1", STORAGE, "pytorch", print)


class Cluster:
    """The namespace of a user, with credentials for S3."""

    def __init__(self, api: KubernetesApi, bucket: Bucket) -> None:
        self.api = api
        self.claims = KubernetesClaims(api)
        self.bucket = bucket
        self.heard: list[str] = []

    def sync(self, run_id: str = "run-1", storage: Storage = STORAGE, framework: str = "pytorch") -> dict[str, Any]:
        self.heard.clear()
        return sync(self.api, self.bucket.name, run_id, storage, framework, self._hear)

    def names(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.claims.all()]

    def in_pod(self, program: str, *mounts: ClaimMount, run_id: str = "reader") -> list[str]:
        """Run a program in a pod with a custom image, and return its output, without what the pod may wait for."""
        lines: list[LogLine] = []
        job = replace(pods_job(program, run_id=run_id, kind=JobKind.BATCH_JOB), mounts=mounts)
        with KubernetesBackend(self.api) as backend:
            run_job(job, backend, lines.append)
        return [line.text for line in lines if not line.text.startswith("waiting: ")]

    def read(self, report: dict[str, Any], run_id: str = "reader") -> list[str]:
        mount = ClaimMount(claim=report["claim"], path="/data", sub_path=report["sub_path"], read_only=True)
        return self.in_pod(READ_THEN_WRITE, mount, run_id=run_id)

    def versions(self, run_id: str) -> list[str]:
        return self.in_pod(LIST, ClaimMount(claim=STORAGE.staging_claim, path="/staging"), run_id=run_id)[0].split()

    def uid(self, name: str) -> str:
        found = self.claims.find(name)
        assert found is not None
        return str(found["metadata"]["uid"])

    def volume(self, name: str, claim: str, access_mode: str, source: dict[str, Any]) -> None:
        """Create a volume and a PVC for it, as an administrator would."""
        reference = {"kind": CLAIM, "namespace": self.api.namespace, "name": claim}
        spec = {"capacity": {"storage": "1Gi"}, "accessModes": [access_mode], "claimRef": reference, **source}
        spec["persistentVolumeReclaimPolicy"] = "Retain"
        manifest = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self.api.create("/api/v1/persistentvolumes", manifest)
        wanted = {"accessModes": [access_mode], "storageClassName": "", "volumeName": name}
        wanted["resources"] = {"requests": {"storage": "1Gi"}}
        metadata = {"name": claim}
        self.claims.create({"apiVersion": "v1", "kind": CLAIM, "metadata": metadata, "spec": wanted})

    def _hear(self, line: LogLine) -> None:
        self.heard.append(line.text)


@pytest.fixture
def cluster(namespace: str) -> Iterator[Cluster]:
    api = KubernetesApi.connect(namespace)
    with Bucket(namespace) as bucket:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": DEFAULT_SECRET},
            "stringData": bucket.credentials,
        }
        api.create(api.path("v1", "secrets"), secret)
        bucket.put({f"digits/{key}": content for key, content in FILES.items()})
        yield Cluster(api, bucket)
    for name in ("admins", "output"):
        api.delete(f"/api/v1/persistentvolumes/{namespace}-{name}")


def test_pods_read_a_clone_that_the_next_run_reuses(cluster: Cluster) -> None:
    report = cluster.sync()
    assert (report["exposure"], report["claim"]) == ("clone", f"ds-kubetrain-staging-digits-{report['digest']}")
    assert report["downloaded"] == len(FILES)
    assert cluster.read(report) == ["train a", "EROFS"]
    uid = cluster.uid(report["claim"])
    again = cluster.sync("run-2")
    assert (again["digest"], again["claim"], again["downloaded"]) == (report["digest"], report["claim"], 0)
    assert cluster.uid(report["claim"]) == uid
    assert cluster.heard[-1] == f"PVC {report['claim']} is ready with version {report['digest']}"


def test_a_restarted_launcher_ends_the_same(cluster: Cluster) -> None:
    report = cluster.sync()
    jobs = cluster.api.get(cluster.api.path("batch/v1", "jobs"))
    assert cluster.sync() == report
    assert cluster.api.get(cluster.api.path("batch/v1", "jobs"))["items"] == jobs["items"]


def test_a_launcher_killed_at_any_time_and_restarted_ends_the_same(cluster: Cluster) -> None:
    for seconds in (2.0, 2.5, 3.0, 4.0, 5.0, 6.5):
        launcher = spawned.Process(target=sync_in_a_process, args=(cluster.api.namespace, cluster.bucket.name))
        launcher.start()
        launcher.join(seconds)
        launcher.kill()
        launcher.join()
    report = cluster.sync()
    assert report["downloaded"] == len(FILES), "the report is of the one job that there was"
    assert len(cluster.api.get(cluster.api.path("batch/v1", "jobs"))["items"]) == 1
    assert cluster.names() == [report["claim"], STORAGE.output_claim, STORAGE.staging_claim]


def test_an_account_with_only_our_role_can_sync(cluster: Cluster) -> None:
    for manifest in [each for path in ROLES for each in yaml.safe_load_all(path.read_text())]:
        group = {"ServiceAccount": "v1"}.get(manifest["kind"], "rbac.authorization.k8s.io/v1")
        if "subjects" in manifest:
            manifest["subjects"][0]["namespace"] = cluster.api.namespace
        cluster.api.create(cluster.api.path(group, f"{manifest['kind'].lower()}s"), manifest)
    restricted = Cluster(as_account("kubetrain-launcher", cluster.api), cluster.bucket)
    report = restricted.sync(storage=replace(STORAGE, keep_versions=1))
    assert report["exposure"] == "clone", "whether the driver can is not known, but the staging claim is no other's"
    assert not [line for line in restricted.heard if "pruned" in line]
    exposed = restricted.claims.find(report["claim"])
    assert restricted.claims.delete(report["claim"], exposed["metadata"])


def test_a_shared_staging_pvc_is_mounted_directly(cluster: Cluster) -> None:
    report = cluster.sync(storage=replace(STORAGE, exposure="shared"), framework="")
    assert report["claim"] == STORAGE.staging_claim
    assert cluster.read(report) == ["train a", "EROFS"]
    assert cluster.names() == [STORAGE.staging_claim], "a run that trains nothing has no output"


@pytest.mark.thorough
def test_a_pvc_of_the_administrator_over_the_same_storage(cluster: Cluster) -> None:
    storage = replace(STORAGE, exposure="static", static_claim="admins")
    with pytest.raises(KubetrainError, match="no PVC admins: create it"):
        cluster.sync(storage=storage)
    staging = settled(cluster.claims, STORAGE.staging_claim)
    volume = cluster.api.get(f"/api/v1/persistentvolumes/{staging['spec']['volumeName']}")
    source = {key: volume["spec"][key] for key in ("local", "nodeAffinity")}
    cluster.volume(f"{cluster.api.namespace}-admins", "admins", "ReadOnlyMany", source)
    settled(cluster.claims, "admins")
    report = cluster.sync(storage=storage)
    assert report["claim"] == "admins"
    assert cluster.read(report) == ["train a", "EROFS"]


def test_a_pvc_of_someone_else_is_refused_and_left_unchanged(cluster: Cluster) -> None:
    report = cluster.sync()
    theirs = f"ds-other-digits-{report['digest']}"
    wanted = replace(STORAGE.staging, name=theirs).manifest()
    wanted["metadata"] = {"name": theirs}
    cluster.claims.create(wanted)
    with pytest.raises(KubetrainError, match=f"PVC {theirs} was not created by kubetrain: delete it"):
        cluster.sync("run-2", replace(STORAGE, staging_claim="other"))
    assert cluster.claims.find(theirs)["metadata"].get("annotations", {}).get("kubetrain/last-used") is None


def test_an_output_pvc_that_is_not_writable_fails_before_anything_is_transferred(cluster: Cluster) -> None:
    folder = {"hostPath": {"path": "/opt", "type": "Directory"}}
    cluster.volume(f"{cluster.api.namespace}-output", STORAGE.output_claim, "ReadWriteMany", folder)
    with pytest.raises(JobFailed) as failed:
        cluster.sync()
    for part in ("user 65532 cannot write", "PVC mounted at /output", "(Permission denied)", "fsGroup"):
        assert part in str(failed.value)
    assert cluster.versions("list") == []


def test_a_pvc_that_waits_for_its_first_pod_is_not_waited_for(cluster: Cluster) -> None:
    late = cluster.api.namespace
    cluster.api.create(
        "/apis/storage.k8s.io/v1/storageclasses",
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": late},
            "provisioner": "example.com/nobody",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    try:
        ensure_claim(replace(STORAGE, storage_class=late).staging, cluster.claims, cluster.heard.append)
        request = STORAGE.exposure_of("s3://bucket/digits", "0123456789abcdef", 1)
        made = expose_version(request, STORAGE.staging_claim, cluster.claims, cluster.heard.append, timeout_seconds=0)
    finally:
        cluster.api.delete(f"/apis/storage.k8s.io/v1/storageclasses/{late}")
    assert cluster.heard[-1] == f"PVC {made.claim} exists and is filled when the first pod mounts it"
    assert {claim["status"]["phase"] for claim in cluster.claims.all()} == {"Pending"}


def test_two_runs_at_once_create_one_pvc(cluster: Cluster) -> None:
    ensure_claim(STORAGE.staging, cluster.claims, cluster.heard.append)
    request = STORAGE.exposure_of("s3://bucket/digits", "0123456789abcdef", 1)
    arguments = (request, STORAGE.staging_claim, cluster.claims, cluster.heard.append, 60.0)
    launchers = [threading.Thread(target=expose_version, args=arguments) for _ in range(8)]
    for launcher in launchers:
        launcher.start()
    for launcher in launchers:
        launcher.join()
    assert len([line for line in cluster.heard if "is ready with version" in line]) == 8
    assert len(cluster.claims.all()) == 2


@pytest.mark.thorough
def test_unused_versions_are_pruned(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, reports = replace(STORAGE, keep_versions=1), []
    for number in range(3):
        cluster.bucket.put({"digits/train/a/1.png": f"train a {number}".encode()})
        reports.append(cluster.sync(f"run-{number}", storage))
    assert set(cluster.versions("before")) == {report["digest"] for report in reports}, "none of them is a day old"
    cluster.in_pod(MAKE_OLD, ClaimMount(claim=storage.staging_claim, path="/staging"), run_id="age")
    monkeypatch.setattr(prune, "YOUNG", timedelta(0))
    cluster.sync("run-3", storage)
    assert cluster.versions("after") == [reports[-1]["digest"]]
    exposed = [claim["metadata"]["name"] for claim in cluster.claims.all() if prune.is_exposed(claim)]
    living = [name for name in exposed if not cluster.claims.find(name)["metadata"].get("deletionTimestamp")]
    assert living == [reports[-1]["claim"]]
