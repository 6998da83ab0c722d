"""A run's output in a store: complete or invisible, whoever is killed when, on disks that no pod shares."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kubetrain_components.collect_checkpoint.collect import collect_checkpoint
from kubetrain_components.keep_output import kept_run
from kubetrain_components.keep_output.kept_run import KeptRun
from kubetrain_components.keep_output.serve import until_exit
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import ObjectChanged, ObjectContent, ObjectStore
from kubetrain_components.run.request import parameters_of
from kubetrain_components.sites.cluster import ClusterSite
from kubetrain_pipelines.local_run.embedded_s3 import EmbeddedS3
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output import newest_start, output_store
from kubetrain_trainer.output.checkpoint_layout import (
    Checkpoint,
    TrainingProgress,
    complete_checkpoints,
    intact_checkpoints,
    remove_checkpoint,
)
from kubetrain_trainer.output.manifest import MANIFEST, write_manifest
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig
from support.kept_output import PodDisk, pod_disk

RUN = "run-1"


@pytest.fixture
def uri(bucket: str) -> str:
    return f"s3://{bucket}/outputs"


@pytest.fixture
def disk(tmp_path: Path, uri: str, s3: EmbeddedS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodDisk]:
    with pod_disk(tmp_path / "pod-0", uri, s3.url) as disk:
        monkeypatch.setenv(output_store.VARIABLE, str(disk.root))
        yield disk


@pytest.fixture
def store(uri: str, s3: EmbeddedS3) -> ObjectStore:
    return open_store(f"{uri}/{RUN}", s3.url)


def begun(root: Path) -> TrainingOutput:
    output = TrainingOutput(root / RUN)
    output.begin("pytorch", TrainConfig(), "digest")
    return output


def save(output: TrainingOutput, step: int, content: bytes = b"state") -> Checkpoint:
    details = {"metrics": {}, "world_size": 1}
    return output.write_checkpoint(
        TrainingProgress(step=step), details, lambda folder: (folder / "state.pt").write_bytes(content * step)
    )


def on_a_new_disk(disk: PodDisk) -> TrainingOutput:
    """Return the output as a pod finds it that starts on another node."""
    for path in disk.root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    disk.restart()
    newest_start._own.clear()
    return TrainingOutput(disk.root / RUN)


def test_a_new_pod_finds_what_another_one_saved(disk: PodDisk) -> None:
    output = begun(disk.root)
    output.metrics.write_text('{"step": 1}\n')
    saved = [save(output, step) for step in (1, 2)]
    output.write_export(saved[1], {}, lambda folder: (folder / "model.pt").write_bytes(b"model"))
    output.finish(saved[1])

    output = on_a_new_disk(disk)
    output.begin("pytorch", TrainConfig(), "digest")
    assert output.read_result()
    assert output.metrics.read_text() == '{"step": 1}\n'
    found = complete_checkpoints(output.checkpoints)
    assert [checkpoint.manifest for checkpoint in found] == [checkpoint.manifest for checkpoint in saved]
    assert (found[1] / Path("state.pt")).stat().st_blocks == 0, "its bytes are fetched when they are needed"
    newest = next(intact_checkpoints(output.checkpoints))
    assert (newest.path / "state.pt").read_bytes() == b"state" * 2
    assert [file["name"] for file in output.read_export()["files"]] == ["model.pt"]
    assert (output.export / "model.pt").read_bytes() == b"model"
    with pytest.raises(KubetrainError, match="dataset_digest"):
        output.begin("pytorch", TrainConfig(), "another")


def test_a_process_that_begins_late_keeps_what_another_one_has_written(disk: PodDisk) -> None:
    output = begun(disk.root)
    output.metrics.write_text("1")
    save(output, 1)
    output.metrics.write_text("1 2")
    assert next(intact_checkpoints(output.checkpoints)), "as the process of another rank in this pod does"
    assert output.metrics.read_text() == "1 2"
    save(output, 2)
    output = on_a_new_disk(disk)
    output_store.begin(output.path)
    assert output.metrics.read_text() == "1 2"


FAILING = """
import sys; from pathlib import Path; sys.path[:0] = eval(sys.argv[2])
from contract.test_output_store import begun, save
from kubetrain_trainer.processes.entry_point import run
def train():
    output = begun(Path(sys.argv[1]))
    save(output, 1)
    output.metrics.write_text("the last row")
    raise ValueError
run(train)
"""


def test_rows_after_the_last_checkpoint_reach_the_store_when_a_training_fails(
    disk: PodDisk, store: ObjectStore
) -> None:
    failed = subprocess.run([sys.executable, "-c", FAILING, str(disk.root), repr(sys.path)], check=False)
    assert failed.returncode == 1
    assert store.read("metrics.jsonl").read() == b"the last row"


def test_an_older_start_leaves_the_rows_of_the_newest_one_alone(disk: PodDisk, store: ObjectStore) -> None:
    output = begun(disk.root)
    save(output, 1)
    output.metrics.write_text("old")
    output_store.push_last(output.path, "older")
    assert "metrics.jsonl" not in {item.key for item in store.list()}


def test_the_end_of_a_training_does_not_wait_for_a_lost_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(output_store, "END_SECONDS", 0.1)
    monkeypatch.setenv(output_store.VARIABLE, str(tmp_path))
    output_store.push_last(tmp_path / RUN, "newest")
    assert "may lack the last rows" in caplog.text


def test_a_removed_checkpoint_is_removed_in_the_store(disk: PodDisk, store: ObjectStore) -> None:
    output = begun(disk.root)
    first, _ = save(output, 1), save(output, 2)
    remove_checkpoint(first.path)
    assert {item.key.split("/")[1] for item in store.list() if item.key.startswith("checkpoints/")} == {"step-00000002"}


def test_a_checkpoint_that_is_written_again_replaces_the_one_before_at_once(disk: PodDisk, store: ObjectStore) -> None:
    output = begun(disk.root)
    save(output, 1, b"old")
    save(output, 1, b"new")
    assert len([item for item in store.list() if item.key.endswith("/state.pt")]) == 1
    output = on_a_new_disk(disk)
    assert (next(intact_checkpoints(output.checkpoints)).path / "state.pt").read_bytes() == b"new"


@pytest.mark.parametrize("last", ["put", "parts"])
def test_what_has_no_manifest_does_not_exist(
    disk: PodDisk, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    output = begun(disk.root)
    save(output, 1)
    ask = output_store._ask

    def until_killed(verb: str, path: Path, **more: object) -> object:
        answer = ask(verb, path, **more)
        if verb == last:
            raise SystemExit
        return answer

    monkeypatch.setattr(output_store, "_ask", until_killed)
    with pytest.raises(SystemExit):
        save(output, 2)
    monkeypatch.setattr(output_store, "_ask", ask)
    output = on_a_new_disk(disk)
    output.begin("pytorch", TrainConfig(), "digest")
    assert [checkpoint.step for checkpoint in complete_checkpoints(output.checkpoints)] == [1]
    save(output, 3)
    assert not any("step-00000002" in item.key for item in store.list()), "a later checkpoint clears it away"


def test_a_damaged_or_lost_file_makes_the_checkpoint_before_the_newest(disk: PodDisk, store: ObjectStore) -> None:
    output = begun(disk.root)
    for step in (1, 2, 3):
        save(output, step)
    keys = {item.key.split("/")[1]: item.key for item in store.list() if item.key.endswith("state.pt")}
    store.delete(keys["step-00000003"])
    store.write(keys["step-00000002"], b"stat!" * 2)
    output = on_a_new_disk(disk)
    assert next(intact_checkpoints(output.checkpoints)).step == 1


def test_an_older_start_cannot_complete_a_checkpoint(disk: PodDisk, uri: str, s3: EmbeddedS3, tmp_path: Path) -> None:
    output = begun(disk.root)
    program = (
        "import sys; from pathlib import Path; sys.path[:0] = eval(sys.argv[2])\n"
        "from contract.test_output_store import begun\n"
        "begun(Path(sys.argv[1]))"
    )
    with pod_disk(tmp_path / "pod-1", uri, s3.url) as other:
        environment = {**os.environ, **other.variables}
        subprocess.run([sys.executable, "-c", program, str(other.root), repr(sys.path)], env=environment, check=True)
    with pytest.raises(KubetrainError, match="another start of this run"):
        save(output, 1)


def test_parts_of_other_pods_complete_a_checkpoint(disk: PodDisk, uri: str, s3: EmbeddedS3, tmp_path: Path) -> None:
    output = begun(disk.root)
    with pod_disk(tmp_path / "pod-1", uri, s3.url) as other:

        def write(folder: Path) -> None:
            output_store.begin_parts(folder)
            theirs = other.root / folder.relative_to(disk.root)
            theirs.mkdir(parents=True)
            (theirs / "part-1").write_bytes(b"theirs")
            os.environ[output_store.VARIABLE] = str(other.root)
            output_store.put_part(theirs, ["part-1"])
            os.environ[output_store.VARIABLE] = str(disk.root)
            assert not list(theirs.iterdir())
            (folder / "part-1").touch()
            (folder / "part-0").write_bytes(b"ours")

        saved = output.write_checkpoint(TrainingProgress(step=1), {"metrics": {}}, write)
    assert [file["name"] for file in saved.manifest["files"]] == ["part-0", "part-1"]
    newest = next(intact_checkpoints(output.checkpoints))
    assert (newest.path / "part-1").read_bytes() == b"theirs"
    newest = next(intact_checkpoints(on_a_new_disk(disk).checkpoints))
    assert [(newest.path / name).read_bytes() for name in ("part-0", "part-1")] == [b"ours", b"theirs"]


class BetweenRequests:
    """A store in which another pod changes each object just before it is read."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.change: Callable[[str], object] = str

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, key: str, *place: Any) -> ObjectContent:
        self.change(key)
        return self._store.read(key, *place)


@pytest.mark.parametrize("there", [b"new", None])
def test_what_another_pod_writes_or_deletes_between_two_requests_is_what_counts(
    store: ObjectStore, tmp_path: Path, there: "bytes | None"
) -> None:
    folder = tmp_path / "checkpoints" / "step-1"
    folder.mkdir(parents=True)
    write_manifest(folder, {"files": []})
    key = f"checkpoints/step-1/{MANIFEST}"
    for name in (".start", key):
        store.write(name, b"old")
    another = BetweenRequests(store)
    run = KeptRun(cast(ObjectStore, another), tmp_path)
    another.change = (lambda key: store.write(key, there)) if there else store.delete

    run.pull(".start")
    run.fetch("checkpoints/step-1")
    assert (tmp_path / ".start").exists() == bool(there)
    assert not there or (tmp_path / ".start").read_bytes() == there
    store.write(key, b"old")
    with pytest.raises(ObjectChanged) if there else contextlib.nullcontext():
        run.commit("checkpoints/step-1")
    assert store.read(key).read() == (there or (folder / MANIFEST).read_bytes())


SAVING = """
import os, sys; from pathlib import Path; sys.path[:0] = eval(sys.argv[2])
from contract.test_output_store import begun, save
from kubetrain_trainer.output.checkpoint_layout import intact_checkpoints
from kubetrain_trainer.output.checkpoint_writer import remove_superseded
from kubetrain_trainer.settings.config import TrainConfig
output = begun(Path(sys.argv[1]))
newest = next(intact_checkpoints(output.checkpoints), None)
step = newest.step if newest else 0
assert not newest or (newest.path / "state.pt").read_bytes() == b"x" * 100_000 * step
while step < 20:
    step += 1
    remove_superseded(save(output, step, b"x" * 100_000), TrainConfig(keep_checkpoints=1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_any_moment_lose_no_complete_checkpoint(
    disk: PodDisk, store: ObjectStore, tmp_path: Path, seed: int
) -> None:
    """The saving process, its sidecar, or the whole pod with its disk is killed again and again."""
    chance, newest = random.Random(seed), 0
    for _ in range(12):
        process = subprocess.Popen([sys.executable, "-c", SAVING, str(disk.root), repr(sys.path)])
        time.sleep(chance.uniform(0.6, 2.5))
        killed = chance.choice(["training", "sidecar", "pod"])
        if killed == "sidecar":
            disk.restart()
            time.sleep(0.5)
        process.kill()
        assert process.wait() in (0, -9)
        if killed == "pod":
            on_a_new_disk(disk)
        found = complete_steps(store)
        assert max(found, default=0) >= newest
        newest = max(found, default=0)
    subprocess.run([sys.executable, "-c", SAVING, str(disk.root), repr(sys.path)], check=True)
    assert complete_steps(store)[-1] == 20


def complete_steps(store: ObjectStore) -> list[int]:
    stored = {item.key: item for item in store.list()}
    manifests = [json.loads(store.read(key).read()) for key in stored if key.endswith("/manifest.json")]
    for manifest in manifests:
        folder = f"checkpoints/step-{manifest['step']:08d}"
        assert all(kept_run._has(stored, folder, file) for file in manifest["files"])
    return sorted(manifest["step"] for manifest in manifests)


def test_a_request_of_another_version_is_refused(disk: PodDisk) -> None:
    with pytest.raises(KubetrainError, match="unknown request 'forget'"):
        output_store._ask("forget", disk.root / RUN)


def test_without_a_sidecar_nothing_is_asked(tmp_path: Path) -> None:
    output = begun(tmp_path)
    save(output, 1)
    assert next(intact_checkpoints(output.checkpoints)).step == 1


def test_steps_on_a_cluster_read_from_the_store(
    disk: PodDisk, uri: str, s3: EmbeddedS3, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(until_exit.close)
    output = begun(disk.root)
    first = save(output, 1)
    last = save(output, 2)
    output.write_export(last, {}, lambda folder: (folder / "model.pt").write_bytes(b"model"))
    output.finish(last)
    storage = {"output": uri}
    asked = {"data": {"uri": "s3://b/d", "endpoint": s3.url}, "model": {"uri": "s3://b/m"}, "storage": storage}
    read = ClusterSite().output(parameters_of(asked, framework="pytorch", run_id=RUN))
    assert read.path.parent != disk.root
    collected = collect_checkpoint(read, tmp_path / "model")
    assert (collected["checkpoint"], collected["bytes"]) == ("step-00000002", 5)
    assert (tmp_path / "model" / "model.pt").read_bytes() == b"model"
    assert (read.checkpoints / first.name / "state.pt").stat().st_blocks == 0, "only what is read is fetched"

    os.environ[output_store.VARIABLE] = str(disk.root)
    output.write_evaluation({"metrics": {"accuracy": 1.0}})  # by a job, after the step has begun
    os.environ[output_store.VARIABLE] = str(read.path.parent)
    assert read.read_evaluation()["metrics"] == {"accuracy": 1.0}
