"""From checkpoints to a published model: choice by manifest, verification, accuracy gate, publication."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kubetrain_components.collect_checkpoint import collect
from kubetrain_components.collect_checkpoint.collect import collect_checkpoint
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.promote_model.promote import LATEST, GateNotMet, check_gate, promote_model
from kubetrain_components.run.reuse import ImageVersion
from kubetrain_trainer.checkpoint_layout import CorruptFiles, TrainingProgress, choose_checkpoint
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.durable_files import write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.training_output import TrainingOutput

IMAGE = ImageVersion(name="trainer:1", id="sha256:1")


@pytest.fixture
def output(tmp_path: Path) -> TrainingOutput:
    """Three checkpoints, the second the best and exported, and its evaluation."""
    return trained(tmp_path, "0123456789ab")


def trained(tmp_path: Path, run_id: str, created: str = "") -> TrainingOutput:
    output = TrainingOutput(tmp_path / "output" / run_id)
    output.begin("pytorch", TrainConfig(), "d" * 16)
    if created:
        write_json(output.path / "config.json", {**output.read_config(), "created": created})
    for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
        checkpoint = output.write_checkpoint(
            TrainingProgress(step=step),
            {"world_size": 4, "metrics": {"accuracy": accuracy}},
            lambda path: (path / "state.pt").write_bytes(b"w"),
        )
        if step == 2:
            output.write_export(checkpoint, {}, lambda path: (path / "model.pt").write_bytes(b"weights"))
    output.write_evaluation({"metrics": {"accuracy": 0.93, "loss": 0.2}})
    return output


class TestCollect:
    def test_the_best_checkpoint_on_validation_is_copied(self, output: TrainingOutput, tmp_path: Path) -> None:
        collected = collect_checkpoint(output, tmp_path / "artifact")
        assert (collected["step"], collected["metrics"]) == (2, {"accuracy": 0.9})
        assert (tmp_path / "artifact" / "model.pt").read_bytes() == b"weights"
        assert (tmp_path / "artifact" / "manifest.json").is_file()

    def test_a_corrupt_checkpoint_is_not_copied(self, output: TrainingOutput, tmp_path: Path) -> None:
        (output.checkpoints / "step-00000002" / "state.pt").write_bytes(b"x")
        with pytest.raises(KubetrainError, match=r"from step-00000002, but .* step-00000003"):
            collect_checkpoint(output, tmp_path / "artifact")
        assert not (tmp_path / "artifact").exists()

    def test_the_next_best_checkpoints_export_is_copied_if_the_best_is_corrupt(
        self, output: TrainingOutput, tmp_path: Path
    ) -> None:
        (output.checkpoints / "step-00000002" / "state.pt").write_bytes(b"x")
        chosen = choose_checkpoint(output.checkpoints, TrainConfig())
        output.write_export(chosen, {}, lambda path: (path / "model.pt").write_bytes(b"of the next best"))
        assert collect_checkpoint(output, tmp_path / "artifact")["checkpoint"] == "step-00000003"

    def test_an_export_of_another_checkpoint_is_refused(self, output: TrainingOutput, tmp_path: Path) -> None:
        output.write_checkpoint(
            TrainingProgress(step=4),
            {"metrics": {"accuracy": 0.99}},
            lambda path: (path / "state.pt").write_bytes(b"w"),
        )
        with pytest.raises(KubetrainError, match=r"from step-00000002, but .* step-00000004"):
            collect_checkpoint(output, tmp_path / "artifact")

    def test_a_training_without_a_complete_checkpoint_fails(self, tmp_path: Path) -> None:
        empty = TrainingOutput(tmp_path / "empty")
        empty.begin("pytorch", TrainConfig(), "")
        (empty.checkpoints / ".step-00000001.partial").mkdir(parents=True)
        with pytest.raises(KubetrainError, match="no complete checkpoint in"):
            collect_checkpoint(empty, tmp_path / "artifact")

    def test_only_the_manifest_of_a_large_model_is_copied(
        self, output: TrainingOutput, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(collect, "MAX_COPY_BYTES", 3)
        collected = collect_checkpoint(output, tmp_path / "artifact")
        assert [path.name for path in (tmp_path / "artifact").iterdir()] == ["manifest.json"]
        assert collected["path"] == str(output.export)


class TestGate:
    def test_a_gate_that_is_met_or_absent_passes(self) -> None:
        check_gate({"accuracy": 0.9}, 0.9)
        check_gate({"loss": 3.0}, 0.0)

    def test_a_missed_gate_gives_the_difference(self) -> None:
        with pytest.raises(GateNotMet, match=r"0\.9000 is below min_accuracy 0\.9500 by 0\.0500"):
            check_gate({"accuracy": 0.9}, 0.95)

    def test_a_diverged_training_fails_the_gate(self) -> None:
        with pytest.raises(GateNotMet, match="not a number"):
            check_gate({"accuracy": None}, 0.5)

    def test_a_task_without_accuracy_cannot_meet_the_gate(self) -> None:
        with pytest.raises(GateNotMet, match="no metric 'accuracy'"):
            check_gate({"perplexity": 3.0}, 0.5)


class TestPromote:
    @pytest.fixture
    def store(self, tmp_path: Path) -> DirectoryStore:
        return DirectoryStore(tmp_path / "models")

    def latest(self, store: DirectoryStore) -> dict[str, object]:
        content: dict[str, object] = json.loads(store.read(LATEST).read())
        return content

    def test_a_version_and_latest_describe_the_model(self, output: TrainingOutput, store: DirectoryStore) -> None:
        promoted = promote_model(output, store, 0.9, "0123456789ab", IMAGE)
        model = self.latest(store)
        assert promoted.version.endswith("Z-01234567")
        assert promoted.uri == f"{store.uri}/{promoted.version}/"
        assert store.read(f"{promoted.version}/model.pt").read() == b"weights"
        assert json.loads(store.read(f"{promoted.version}/model.json").read()) == model
        assert model["metrics"] == {"accuracy": 0.93, "loss": 0.2}
        assert {"schema", "version", "framework", "files", "dataset_digest", "config_digest", "run_id"} < set(model)
        assert (model["image"], model["image_id"], model["processes"]) == ("trainer:1", "sha256:1", 4)

    def test_below_the_gate_nothing_is_written(self, output: TrainingOutput, store: DirectoryStore) -> None:
        with pytest.raises(GateNotMet):
            promote_model(output, store, 0.99, "0123456789ab", IMAGE)
        assert not (store._root).exists()

    def test_promoting_twice_makes_one_version(self, output: TrainingOutput, store: DirectoryStore) -> None:
        first, second = (promote_model(output, store, 0, "0123456789ab", IMAGE) for _ in range(2))
        assert first == second
        assert len([each for each in store.list() if each.key.endswith("model.json")]) == 1

    def test_a_newer_runs_version_stays_the_latest(self, tmp_path: Path, store: DirectoryStore) -> None:
        older = trained(tmp_path, "aaaa", created="2026-01-01T00:00:00Z")
        newer = trained(tmp_path, "bbbb", created="2026-01-02T00:00:00Z")
        assert promote_model(newer, store, 0, "bbbb", IMAGE).is_latest
        late = promote_model(older, store, 0, "aaaa", IMAGE)
        assert not late.is_latest
        assert "20260102T000000Z-bbbb, of a newer run" in late.note
        assert self.latest(store)["run_id"] == "bbbb"
        assert store.find(f"{late.version}/model.json") is not None, "the older version is published, too"

    def test_another_promotion_in_between_is_not_overwritten(self, tmp_path: Path, store: DirectoryStore) -> None:
        older = trained(tmp_path, "aaaa", created="2026-01-01T00:00:00Z")
        newer = trained(tmp_path, "bbbb", created="2026-01-02T00:00:00Z")
        write_if = store.write_if

        def write_late(key: str, content: bytes, etag: str | None) -> None:
            store.write_if = write_if
            promote_model(newer, store, 0, "bbbb", IMAGE)
            write_if(key, content, etag)

        store.write_if = write_late
        assert not promote_model(older, store, 0, "aaaa", IMAGE).is_latest
        assert self.latest(store)["run_id"] == "bbbb"

    def test_an_edited_export_is_not_published(self, output: TrainingOutput, store: DirectoryStore) -> None:
        (output.export / "model.pt").write_bytes(b"Weights")
        with pytest.raises(CorruptFiles):
            promote_model(output, store, 0, "0123456789ab", IMAGE)
        assert not store._root.exists()

    def test_a_version_of_a_clock_that_was_ahead_does_not_stay_the_latest(
        self, tmp_path: Path, store: DirectoryStore
    ) -> None:
        ahead = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        promote_model(trained(tmp_path, "aaaa", created=ahead), store, 0, "aaaa", IMAGE)
        promoted = promote_model(trained(tmp_path, "bbbb"), store, 0, "bbbb", IMAGE)
        assert promoted.is_latest
        assert "dated in the future" in promoted.note
        assert self.latest(store)["run_id"] == "bbbb"

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": "other/v1", "version": "9"}'])
    def test_another_programs_latest_is_not_replaced(
        self, output: TrainingOutput, store: DirectoryStore, content: bytes
    ) -> None:
        store.write(LATEST, content)
        with pytest.raises(KubetrainError, match=rf"{store.uri}/{LATEST} .* delete it, or set model_uri"):
            promote_model(output, store, 0, "0123456789ab", IMAGE)
        assert store.read(LATEST).read() == content
