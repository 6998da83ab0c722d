"""A dataset that is on a PVC already: runs read it where it is, and notice that it changes."""

from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.run.request import Request
from support.cluster import COMPONENTS, ENDPOINT_IN_PODS, Bucket, pods_job
from support.kfp_steps import PipelineRun, StepFailed, asked
from support.rights import connect_for_runs

pytestmark = [pytest.mark.cluster, pytest.mark.core]

PHOTOS = ClaimMount(claim="photos", path="/photos")
FILL = """
from pathlib import Path
from kubetrain_components.object_store.open_store import open_store
store = open_store({uri!r}, {endpoint!r})
for item in store.list():
    path = Path("/photos/flowers/2026", item.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(store.read(item.key, item.etag).read())
"""
CHANGE = "import os, pathlib; os.utime(next(pathlib.Path('/photos/flowers/2026/train').rglob('*.png')), (1, 1))"
LINK = "import os; os.symlink('/etc', '/photos/flowers/2026/link')"


class Volume:
    """A PVC of the user's, with a dataset that pods of theirs write."""

    def __init__(self, api: KubernetesApi, digits: Bucket) -> None:
        self.api = api
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": PHOTOS.claim}, "spec": spec}
        api.create(api.path("v1", "persistentvolumeclaims"), claim)
        program = FILL.format(uri=digits.uri("digits"), endpoint=ENDPOINT_IN_PODS)
        self.run("fill", program, image=COMPONENTS, memory="256Mi", env=Bucket.credentials)

    def run(self, name: str, program: str, **placement: Any) -> None:
        job = pods_job(program, run_id=name, kind=JobKind.BATCH_JOB, **placement)
        with KubernetesBackend(self.api) as backend:
            run_job(replace(job, mounts=(PHOTOS,)), backend, lambda line: print(line.text))


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    return connect_for_runs(namespace)


@pytest.fixture
def volume(api: KubernetesApi, digits: Bucket) -> Volume:
    return Volume(api, digits)


def in_place(digits: Bucket, uri: str = "pvc://photos/flowers/2026", **train: Any) -> Request:
    models = digits.uri("in-place/models")
    return asked(digits, data={"uri": uri}, model={"uri": models}, train={"epochs": 3, **train})


def claims(api: KubernetesApi) -> list[str]:
    found = api.get(api.path("v1", "persistentvolumeclaims"))["items"]
    return sorted(each["metadata"]["name"] for each in found)


def test_a_run_reads_the_data_where_it_is(api: KubernetesApi, digits: Bucket, volume: Volume) -> None:
    run = PipelineRun(api, "train_pytorch", "run-1", in_place(digits))
    place = run.run("sync-dataset")["parameterValues"]["dataset_place"]
    assert (place["claim"], place["sub_path"]) == ("photos", "flowers/2026")
    assert claims(api) == ["kubetrain-output", "photos"], "nothing is staged"
    run.run("launch-training")
    run.run("collect-checkpoint")
    evaluated = run.run("evaluate-model")["artifacts"]
    assert evaluated["test_metrics"]["artifacts"][0]["metadata"]["accuracy"] > 0.9
    uri = run.run("promote-model")["parameterValues"]["uri"]

    again = PipelineRun(api, "train_pytorch", "run-again", in_place(digits, skip_unchanged=True))
    assert again.run("sync-dataset")["parameterValues"]["reused"]["uri"] == uri

    late = PipelineRun(api, "train_pytorch", "run-late", in_place(digits))
    late.run("sync-dataset")
    volume.run("change", CHANGE)
    with pytest.raises(StepFailed, match=r"no longer the dataset version .* was changed"):
        late.run("launch-training")
    changed = PipelineRun(api, "train_pytorch", "run-changed", in_place(digits, skip_unchanged=True))
    synced = changed.run("sync-dataset")["parameterValues"]
    assert (synced["reused"], synced["dataset_place"]["digest"] == place["digest"]) == ({}, False)


def test_data_that_cannot_be_read_in_place_fails_the_first_step(
    api: KubernetesApi, digits: Bucket, volume: Volume
) -> None:
    def refused(run_id: str, uri: str) -> str:
        with pytest.raises(StepFailed) as failed:
            PipelineRun(api, "train_pytorch", run_id, in_place(digits, uri)).run("sync-dataset")
        return str(failed.value)

    assert "PVC other does not exist" in refused("run-other", "pvc://other")
    assert claims(api) == ["photos"], "nothing is created for a run that cannot start"
    assert "PVC photos has no folder 'flowers/2025'" in refused("run-2025", "pvc://photos/flowers/2025")
    volume.run("link", LINK)
    assert "'2026/link' is a link, but a dataset has only" in refused("run-link", "pvc://photos/flowers")
