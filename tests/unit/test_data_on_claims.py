"""Data on a PVC that pods read where it is: its version, what is refused, and that a later change is noticed."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components import DATA_PATH
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest
from kubetrain_components.object_store.claim_uri import ClaimFolder
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_components.sync_dataset.cluster_sync import sync_on_cluster
from kubetrain_components.sync_dataset.in_place import list_in_place
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.summary import dataset_summary
from kubetrain_trainer.data import dataset_files
from kubetrain_trainer.data.dataset_files import check_dataset
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.settings.config import TrainConfig
from support.claims import MemoryClaims
from support.cli import kubetrain
from support.jobs import MemoryBackend

URI = "pvc://photos/flowers"
FILES = ("train/a/1.png", "val/a/2.png", "test/a/3.png", "README")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    for number, name in enumerate(FILES):
        path = tmp_path / "volume" / "flowers" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * number)
        os.utime(path, ns=(0, 1_000_000_000_000_000_000 + number))
    return tmp_path / "volume"


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


def parameters(**changes: Any) -> RunParameters:
    usual: dict[str, Any] = {
        "dataset_uri": URI,
        "framework": "pytorch",
        "model_uri": "s3://b/models",
        "pipeline": "p",
        "run_id": "r",
        "placement": Placement(image="trainer:1"),
        "components_image": "components:1",
    }
    return RunParameters(**{**usual, **changes})


def test_the_version_is_that_of_the_listing(volume: Path) -> None:
    report = list_in_place(URI, volume)
    assert (report.objects, report.bytes, report.folders) == (4, 6, ["test", "train", "val"])
    assert list_in_place(URI, volume).digest == report.digest
    changed = volume / "flowers" / FILES[0]
    os.utime(changed, ns=(0, 5))
    assert (later := list_in_place(URI, volume).digest) != report.digest
    changed.rename(changed.with_name("4.png"))
    assert list_in_place(URI, volume).digest not in (report.digest, later)


def test_the_folder_that_file_systems_make_is_no_data(volume: Path) -> None:
    digest = list_in_place("pvc://photos", volume).digest
    (volume / "lost+found").mkdir()
    (volume / "lost+found" / "#12").touch()
    assert list_in_place("pvc://photos", volume).digest == digest
    (volume / "flowers" / "train" / "lost+found").mkdir()
    (volume / "flowers" / "train" / "lost+found" / "5.png").touch()
    assert list_in_place("pvc://photos", volume).digest != digest


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("pvc://photos/flower", "PVC photos has no folder 'flower'"),
        ("pvc://photos/flowers/README", "PVC photos has no folder 'flowers/README'"),
        ("pvc://photos/here/flowers", "goes through 'here', which is a link"),
        ("pvc://photos/flowers-now", "goes through 'flowers-now', which is a link"),
        ("pvc://photos/empty", "no objects under pvc://photos/empty: check the URI"),
    ],
)
def test_a_path_that_names_no_data_is_refused(volume: Path, uri: str, says: str) -> None:
    (volume / "here").symlink_to(".")
    (volume / "flowers-now").symlink_to("flowers")
    (volume / "empty" / "inner").mkdir(parents=True)
    with pytest.raises(KubetrainError, match=says):
        list_in_place(uri, volume)


def test_what_is_neither_file_nor_folder_is_named(volume: Path) -> None:
    odd = volume / "flowers" / "train" / "odd"
    odd.symlink_to("a")
    with pytest.raises(KubetrainError, match="'train/odd' is a link, but a dataset has only files and folders"):
        list_in_place(URI, volume)
    odd.unlink()
    os.mkfifo(odd)
    with pytest.raises(KubetrainError, match="'train/odd' is a device, pipe or socket"):
        list_in_place(URI, volume)
    odd.unlink()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(odd))
        with pytest.raises(KubetrainError, match="'train/odd' is a device, pipe or socket"):
            list_in_place(URI, volume)


def test_a_file_that_is_removed_while_it_is_listed(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Removing:
        def __init__(self, path: Path) -> None:
            self.found = list(os.scandir(path))

        def __enter__(self) -> list[os.DirEntry[str]]:
            (volume / "flowers" / FILES[-1]).unlink(missing_ok=True)
            return self.found

        def __exit__(self, *unused: object) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(dataset_files, "os", type("Os", (), {"scandir": Removing}))
        with pytest.raises(KubetrainError, match=r"pvc://photos/flowers: cannot read \S*README \(No such file"):
            list_in_place(URI, volume)


def check(volume: Path, outputs: Path, digest: str) -> None:
    output = TrainingOutput(outputs / "run-1")
    check_dataset(Arguments(TrainConfig(), volume / "flowers", output, digest, dataset_files=len(FILES)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: os.utime(folder / "train/a/1.png"), "'train/a/1.png' was changed, added or removed"),
        (lambda folder: (folder / "val/a/2.png").unlink(), "'val/a/2.png' was"),
        (lambda folder: (folder / "val/a/9.png").touch(), "'val/a/9.png' was"),
    ],
)
def test_a_change_after_the_run_began_is_named(volume: Path, outputs: Path, change: Any, says: str) -> None:
    report = list_in_place(URI, volume, outputs)
    check(volume, outputs, report.digest)
    change(volume / "flowers")
    with pytest.raises(KubetrainError, match=f"no longer the dataset version that the run began with: {says}"):
        check(volume, outputs, report.digest)
    check(volume, outputs, list_in_place(URI, volume, outputs).digest)


def test_the_transfer_pod_lists_and_copies_nothing(volume: Path, outputs: Path) -> None:
    before = sorted(volume.rglob("*"))
    for path in (volume, volume / "flowers"):
        path.chmod(0o555)
    command = [sys.executable, "-m", "kubetrain_components.sync_dataset.transfer", "--dataset-uri", URI]
    command += ["--staging", str(volume), "--output", str(outputs), "--check-writable", str(outputs)]
    message = outputs.parent / "message"
    environment = {**os.environ, "KUBETRAIN_TERMINATION_LOG": str(message)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(volume.rglob("*")) == before
    [listing] = (outputs / dataset_files.FOLDER).iterdir()
    assert listing.stem == list_in_place(URI, volume).digest
    assert [json.loads(line)[0] for line in listing.read_text().splitlines()] == sorted(FILES)


def mounts_of(manifest: Manifest) -> dict[str, tuple[str, str, bool]]:
    """Return the PVC, folder and whether it is read-only, by path, of the first pod of a job."""
    spec = next(iter(manifest["spec"].get("pytorchReplicaSpecs", {"": manifest["spec"]}).values()))["template"]["spec"]
    claims = {each["name"]: each.get("persistentVolumeClaim", {}).get("claimName", "") for each in spec["volumes"]}
    return {
        each["mountPath"]: (claims[each["name"]], each.get("subPath", ""), each.get("readOnly", False))
        for each in spec["containers"][0]["volumeMounts"]
        if claims[each["name"]]
    }


def test_pods_mount_the_folder_read_only() -> None:
    output, *jobs = planned_manifests(parameters(gate="accuracy>=0.5"))
    assert output["metadata"]["name"] == "kubetrain-output", "and no staging PVC"
    transfer, training, evaluation = map(mounts_of, jobs)
    assert transfer == {"/staging": ("photos", "", True), "/output": ("kubetrain-output", "", False)}
    for mounts in (training, evaluation):
        assert mounts[DATA_PATH] == ("photos", "flowers", True)
    command = " ".join(jobs[0]["spec"]["template"]["spec"]["containers"][0]["command"])
    assert command.endswith("--output /output --check-writable /output"), "only the output is written to"
    _, _, whole, _ = planned_manifests(parameters(dataset_uri="pvc://photos"))
    assert mounts_of(whole)[DATA_PATH] == ("photos", "", True)


class Finishing(MemoryBackend):
    """A backend whose transfer found these folders."""

    def __init__(self, *folders: str) -> None:
        super().__init__()
        report = {"status": "completed", "digest": "d" * 16, "folders_cut": False}
        self._report = {**asdict(SyncReport(source=URI, objects=4, bytes=6, folders=[*folders])), **report}

    def create(self, job: Any) -> Any:
        handle = super().create(job)
        self.finish(handle.name, Phase.SUCCEEDED, exit_code=0, last_words=json.dumps(self._report))
        return handle


@pytest.fixture
def claims() -> MemoryClaims:
    made = MemoryClaims()
    spec = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}
    made.put({"metadata": {"name": "photos"}, "spec": spec, "status": {"phase": "Bound"}})
    return made


def test_the_step_hands_on_the_folder(claims: MemoryClaims) -> None:
    report = sync_on_cluster(parameters(), Finishing("test", "train", "val"), claims, lambda line: None)
    place = DatasetPlace.of_report(report)
    data = ClaimMount(claim="photos", path=DATA_PATH, sub_path="flowers", read_only=True)
    assert (place.mounts("kubetrain-output")[0], claims.made) == (data, ["kubetrain-output"])
    shown = dataset_summary(report, place, Path(DATA_PATH))
    assert "a digest of names, sizes and times" in shown
    assert "read-only, from folder `flowers` of PVC `photos`" in shown
    assert "downloaded" not in shown


def test_a_split_that_is_missing_is_named(claims: MemoryClaims) -> None:
    with pytest.raises(KubetrainError, match="pvc://photos/flowers has no folder 'val'"):
        sync_on_cluster(parameters(), Finishing("train"), claims, lambda line: None)


def test_a_pvc_that_cannot_be_read_is_refused_before_anything_is_made(claims: MemoryClaims) -> None:
    with pytest.raises(InvalidSetting, match=r"data\.uri: PVC other does not exist: name another"):
        sync_on_cluster(parameters(dataset_uri="pvc://other"), MemoryBackend(), claims, lambda line: None)
    claims.put({**(claims.find("photos") or {}), "status": {"phase": "Lost"}})
    with pytest.raises(InvalidSetting, match=r"data\.uri: PVC photos is Lost: its volume is gone: name another"):
        sync_on_cluster(parameters(), MemoryBackend(), claims, lambda line: None)
    assert claims.made == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset_uri": "pvc://"}, "data.uri 'pvc://' is not valid: write pvc://CLAIM/PATH"),
        ({"dataset_uri": "pvc://Photos/a"}, "is not valid"),
        ({"dataset_uri": "pvc://photos/../a"}, "is not valid"),
        ({"dataset_uri": "pvc://photos/a/.."}, "is not valid"),
        ({"dataset_uri": "pvc://photos//a"}, "is not valid"),
        (
            {"dataset_uri": '{"train": "pvc://photos/a"}'},
            r"data\.uri\.train 'pvc://photos/a' names a PVC of a",
        ),
        ({"dataset_include": ["*.png"]}, "a PVC is read as it is: leave out data.include"),
        ({"dataset_exclude": ["*.png"]}, "data.include, data.exclude and data.delivery"),
        (
            {"train_config": TrainConfig(data="tar_shards", data_access="cache")},
            "and data.delivery",
        ),
        ({"dataset_uri": "pvc://kubetrain-output/"}, "'pvc://kubetrain-output/' is all of the output PVC"),
        ({"model_uri": "pvc://photos/models"}, "model.uri 'pvc://photos/models' names a PVC of a cluster"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        parameters(**changes)


def test_paths_that_are_fine() -> None:
    for uri in ("pvc://c", "pvc://c/"):
        assert ClaimFolder.of(uri) == ClaimFolder("c")
    assert ClaimFolder.of("pvc://my.claim-1/a/.b/..c/") == ClaimFolder("my.claim-1", "a/.b/..c")
    assert parameters(dataset_uri="pvc://kubetrain-output/earlier").data_in_place


def test_this_machine_has_no_pvcs(tmp_path: Path) -> None:
    ran = kubetrain("run", "--set", f"data.uri={URI}", cwd=tmp_path)
    assert ran.exit_code != 0
    assert f"data.uri '{URI}' names a PVC of a cluster: use a folder here" in ran.output
    assert not (tmp_path / "kubetrain-workspace").exists()
    with pytest.raises(InvalidSetting, match="the URI 'pvc://a/b' names a PVC of a cluster"):
        open_store("pvc://a/b")
