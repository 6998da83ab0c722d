"""From checkpoints to a published model: choice by manifest, verification, publication."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.collect_checkpoint import collect
from kubetrain_components.collect_checkpoint.collect import collect_checkpoint
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.promote_model.description import Origin
from kubetrain_components.promote_model.promote import promote_model
from kubetrain_components.run.reuse import ImageVersion
from kubetrain_components.secret_values import shareable
from kubetrain_trainer.durable_files import write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress, choose_checkpoint
from kubetrain_trainer.output.manifest import CorruptFiles
from kubetrain_trainer.output.model_folder import LATEST, describes_model, open_model
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig


def of(run_id: str, **changes: str) -> Origin:
    image = ImageVersion(name="trainer:1", id="sha256:1")
    return Origin(**{"run_id": run_id, "dataset_uri": "s3://bucket/digits", "image": image, **changes})


@pytest.fixture
def output(tmp_path: Path) -> TrainingOutput:
    """Three checkpoints, the second the best and exported, and its evaluation."""
    return trained(tmp_path, "0123456789ab")


def trained(tmp_path: Path, run_id: str, created: str = "", **settings: Any) -> TrainingOutput:
    output = TrainingOutput(tmp_path / "output" / run_id)
    output.begin("pytorch", TrainConfig(**settings), "d" * 16)
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


class TestPromote:
    @pytest.fixture
    def store(self, tmp_path: Path) -> DirectoryStore:
        return DirectoryStore(tmp_path / "models")

    def latest(self, store: DirectoryStore) -> dict[str, object]:
        content: dict[str, object] = json.loads(store.read(LATEST).read())
        return content

    def test_a_version_and_latest_describe_the_model(self, output: TrainingOutput, store: DirectoryStore) -> None:
        promoted = promote_model(output, store, of("0123456789ab"))
        model = self.latest(store)
        assert promoted.version.endswith("Z-01234567")
        assert promoted.uri == f"{store.uri}/{promoted.version}/"
        assert store.read(f"{promoted.version}/model.pt").read() == b"weights"
        assert json.loads(store.read(f"{promoted.version}/model.json").read()) == model
        assert model["metrics"] == {"accuracy": 0.93, "loss": 0.2}
        assert {"schema", "version", "framework", "files", "dataset_digest", "config_digest", "run_id"} < set(model)
        assert (model["image"], model["image_id"], model["processes"]) == ("trainer:1", "sha256:1", 4)

    def test_promoting_twice_makes_one_version(self, output: TrainingOutput, store: DirectoryStore) -> None:
        first, second = (promote_model(output, store, of("0123456789ab")) for _ in range(2))
        assert first == second
        assert len([each for each in store.list() if each.key.endswith("model.json")]) == 1

    def test_a_newer_runs_version_stays_the_latest(self, tmp_path: Path, store: DirectoryStore) -> None:
        older = trained(tmp_path, "aaaa", created="2026-01-01T00:00:00Z")
        newer = trained(tmp_path, "bbbb", created="2026-01-02T00:00:00Z")
        assert promote_model(newer, store, of("bbbb")).is_latest
        late = promote_model(older, store, of("aaaa"))
        assert (late.is_latest, late.before) == (False, "")
        assert "20260102T000000Z-bbbb, of a newer run" in late.note
        assert self.latest(store)["run_id"] == "bbbb"
        assert store.find(f"{late.version}/model.json") is not None, "the older version is published, too"

    def test_another_promotion_in_between_is_not_overwritten(self, tmp_path: Path, store: DirectoryStore) -> None:
        older = trained(tmp_path, "aaaa", created="2026-01-01T00:00:00Z")
        newer = trained(tmp_path, "bbbb", created="2026-01-02T00:00:00Z")
        write_if = store.write_if

        def write_late(key: str, content: bytes, etag: str | None) -> None:
            store.write_if = write_if
            promote_model(newer, store, of("bbbb"))
            write_if(key, content, etag)

        store.write_if = write_late
        assert not promote_model(older, store, of("aaaa")).is_latest
        assert self.latest(store)["run_id"] == "bbbb"

    def test_an_edited_export_is_not_published(self, output: TrainingOutput, store: DirectoryStore) -> None:
        (output.export / "model.pt").write_bytes(b"Weights")
        with pytest.raises(CorruptFiles):
            promote_model(output, store, of("0123456789ab"))
        assert not store._root.exists()

    def test_a_version_of_a_clock_that_was_ahead_does_not_stay_the_latest(
        self, tmp_path: Path, store: DirectoryStore
    ) -> None:
        ahead = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        promote_model(trained(tmp_path, "aaaa", created=ahead), store, of("aaaa"))
        promoted = promote_model(trained(tmp_path, "bbbb"), store, of("bbbb"))
        assert promoted.is_latest
        assert promoted.before.endswith("-aaaa")
        assert "dated in the future" in promoted.note
        assert self.latest(store)["run_id"] == "bbbb"

    @pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": "other/v1", "version": "9"}'])
    def test_another_programs_latest_is_not_replaced(
        self, output: TrainingOutput, store: DirectoryStore, content: bytes
    ) -> None:
        store.write(LATEST, content)
        with pytest.raises(KubetrainError, match=rf"{store.uri}/{LATEST} .* delete it, or set model.uri"):
            promote_model(output, store, of("0123456789ab"))
        assert store.read(LATEST).read() == content
        assert [each.key for each in store.list()] == [LATEST], "no version is left behind without a name"


class TestModelJson:
    def published(self, output: TrainingOutput, folder: Path, **origin: str) -> dict[str, Any]:
        promoted = promote_model(output, DirectoryStore(folder), of("0123456789ab", **origin))
        content: dict[str, Any] = json.loads((folder / promoted.version / "model.json").read_text())
        return content

    def test_it_says_what_loading_needs_and_where_the_model_comes_from(self, tmp_path: Path) -> None:
        settings = {"model": "torchvision:resnet18", "model_args": {"width": 2}, "image_size": 64}
        model = self.published(trained(tmp_path, "r", **settings), tmp_path / "models", commit="4b825dc")
        assert describes_model(model)
        assert (model["schema"], model["framework"]) == ("kubetrain/model/v2", "pytorch")
        assert (model["step"], model["checkpoint"], model["commit"]) == (2, "step-00000002", "4b825dc")
        assert (model["dataset_uri"], model["dataset_digest"]) == ("s3://bucket/digits", "d" * 16)
        assert model["versions"].keys() >= {"python", "kubetrain", "torch"}
        assert model["input"]["shape"] == [3, 64, 64]
        assert model["input"].keys() >= {"size", "resize", "crop", "channels", "mean", "deviation"}
        assert TrainConfig.from_dict(model["config"]) == TrainConfig(**settings)
        assert open_model(tmp_path / "models").config().digest == model["config_digest"]

    def test_the_input_of_your_own_code_is_unknown(self, tmp_path: Path) -> None:
        for name, settings in (("task", {"model": "team.task:build"}), ("script", {"entry": {"script": "train.py"}})):
            model = self.published(trained(tmp_path, name, **settings), tmp_path / f"{name}-models")
            assert (model["input"], model["classes"]) == ({}, [])

    def test_no_secret_gets_in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-0")
        entry = {
            "command": ["python", "train.py", "--api-key=canary-1", "--password", "canary-2"],
            "evaluation": {"script": "test.py", "args": ["--token", "canary-3"]},
        }
        arguments = {"width": 2, "hub": {"api_key": "canary-4"}, "url": "https://me:canary-5@host/x", "pad": "[PAD]"}
        output = trained(tmp_path, "r", entry=entry, model_args=arguments)
        model = self.published(output, tmp_path / "models", dataset_uri="s3://me:canary-6@bucket/data")
        assert "canary" not in json.dumps(model)
        assert model["config"]["entry"]["command"][0] == "python"
        assert model["config"]["entry"]["evaluation"]["script"] == "test.py"
        assert model["config"]["model_args"] == {"width": 2, "hub": {"api_key": "…"}, "url": "…", "pad": "[PAD]"}
        with pytest.raises(KubetrainError, match=r"published without model\.args hub, url, which may be a secret"):
            open_model(tmp_path / "models").config()

    def test_every_value_below_the_name_of_a_secret_is_hidden(self) -> None:
        secrets = {
            "api_key": 123456,
            "api_keys": ["canary-1"],
            "hf_tokens": {"team": "canary-2"},
            "passwords": {"db": {"user": "canary-3"}, "pins": [424242]},
            "token_store": {"value": "canary-4"},
        }
        settings = {
            **{"key_dim": 64, "pad_token_id": 3, "num_keys": 8, "max_tokens": 512, "tokens": ["a"]},
            **{"special_tokens": {"pad": "[PAD]"}, "use_token": True, "sizes": {"width": 2}},
        }
        shown = shareable(TrainConfig(model_args={**secrets, **settings}).to_dict())["model_args"]
        assert "canary" not in str(shown) and "123456" not in str(shown) and "424242" not in str(shown)
        assert {name: shown[name] for name in settings} == settings

    @pytest.mark.parametrize(
        "change",
        [
            {"schema": "kubetrain/model/v3"},
            {"files": [{"name": "../outside"}]},
            {"files": [{"name": "/etc/passwd"}]},
            {"files": [{"name": 7}]},
            {"files": "model.pt"},
            {"files": []},
            {"classes": ["cat", "dog", "cat"]},
            {"config": None},
            {"version": "../.."},
            {"version": ""},
            {"run_id": None},
        ],
    )
    def test_nothing_is_read_outside_its_folder_or_of_another_program(
        self, output: TrainingOutput, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        wrong = {**self.published(output, tmp_path / "models"), **change}
        assert not describes_model(wrong)
        (tmp_path / "models" / "latest.json").write_text(json.dumps(wrong))
        with pytest.raises(KubetrainError, match="does not describe a model"):
            open_model(tmp_path / "models")
        assert not describes_model([wrong])
