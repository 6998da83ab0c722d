"""Published models of both frameworks: loaded, they answer as in their evaluation; and measured as the latest model."""

import hashlib
import importlib
import io
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

from kubetrain_components.fetch_model.fetch import fetch_latest
from kubetrain_components.fetch_model.load import load_model
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.local_run.embedded_s3 import EmbeddedS3
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.models.evaluation_record import ClassPredictions, Measured
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.settings.config import TrainConfig
from support.published import counted, evaluated, exported, published

SETTINGS = TrainConfig(image_size=12, model_args={"width": 8}, batch_size=64)
EXPORTS = {"pytorch": "model.pt", "tensorflow": "model.weights.h5"}
TASKS = {
    "pytorch": """
import torch
from kubetrain_trainer import Task

def build(config, data_dir):
    names = (data_dir / "names.txt").read_text().split()
    model = torch.nn.Linear(4, len(names))
    return Task(model=model, data=lambda split: [(torch.ones(4), 1)], loss=lambda o, t: o[:, 0], classes=tuple(names))
""",
    "tensorflow": """
import keras, tensorflow as tf
from kubetrain_trainer import KerasTask

class One:
    def __len__(self):
        return 1

    def load(self, index):
        return tf.ones(4), tf.constant(1)

def build(config, data_dir):
    names = (data_dir / "names.txt").read_text().split()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(len(names))])
    return KerasTask(model=model, data=lambda split: One(), loss=lambda o, t: o[:, 0], classes=tuple(names))
""",
}


@pytest.fixture(scope="module", params=["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def first(framework: str, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Arguments, Path]:
    """Return an evaluated model, and the folder of models in which it is the latest."""
    folder = tmp_path_factory.mktemp("first")
    arguments = exported(framework, folder / "run", digits, SETTINGS)
    evaluated(framework, arguments)
    published(arguments, folder / "models")
    return arguments, folder / "models"


@pytest.fixture
def models(first: tuple[Arguments, Path], tmp_path: Path) -> Path:
    """Return a copy of the folder of models, which a test may damage."""
    return Path(shutil.copytree(first[1], tmp_path / "models"))


def change(models: Path, **changes: Any) -> Path:
    """Change model.json and latest.json, and return the folder of the version; None removes a name."""
    (version,) = (path for path in models.iterdir() if path.is_dir())
    described = {**json.loads((models / "latest.json").read_text()), **changes}
    text = json.dumps({name: value for name, value in described.items() if value is not None})
    for path in (models / "latest.json", version / "model.json"):
        path.write_text(text)
    return version


class TestLoading:
    def test_it_predicts_as_in_its_evaluation(self, first: tuple[Arguments, Path], digits: Path) -> None:
        arguments, models = first
        model, evaluation = load_model(models), arguments.output.read_evaluation()
        images = sorted((digits / "test").glob("*/*.png"))
        found = model.predict(images)
        assert not getattr(model.network, "training", False), "as it was loaded, without dropout"
        names, truths = [each.name for each in found], [path.parent.name for path in images]
        labels = {name: number for number, name in enumerate(model.classes)}
        assert counted(truths, names, labels) == evaluation["confusion"]
        share = sum(name == truth for name, truth in zip(names, truths, strict=True)) / len(truths)
        assert evaluation["metrics"]["accuracy"] == pytest.approx(share)
        assert len(set(names)) > 1, "a model that always answers the same proves nothing"
        assert model.metrics == evaluation["metrics"]
        for each in evaluation["misclassified"]:
            assert any(abs(one.probability - each["confidence"]) < 1e-3 for one in found)
        assert sum(found[0].probabilities.values()) == pytest.approx(1, abs=1e-3)
        assert found[0].probability == max(found[0].probabilities.values())

    def test_an_image_may_be_a_path_a_file_an_image_or_an_array(
        self, first: tuple[Arguments, Path], tmp_path: Path
    ) -> None:
        model = load_model(first[1])
        noise = np.random.default_rng(0).integers(0, 256, (9, 20, 3), np.uint8)
        image, path = Image.fromarray(noise), tmp_path / "noise.png"
        image.save(path)
        found = model.predict([path, str(path), path.read_bytes(), image, noise])
        assert [each.probabilities for each in found] == [found[0].probabilities] * 5
        assert model.predict(path) == model.predict(image) == model.predict([path])
        assert model.predict([]) == []
        gray = np.asarray(image.convert("L"))
        assert (model.predict(noise), model.predict(gray)) == (model.predict([noise]), model.predict([gray]))
        assert model.predict([gray])[0].probabilities == model.predict([Image.fromarray(gray)])[0].probabilities

    def test_a_batch_that_is_ready_goes_to_the_network(self, first: tuple[Arguments, Path]) -> None:
        model = load_model(first[1])
        batch = np.random.default_rng(0).normal(size=[2, *model.model_json["input"]["shape"]]).astype(np.float32)
        if model.model_json["framework"] == "pytorch":
            import torch

            batch = torch.from_numpy(batch)
        assert [each.name in model.classes for each in model.predict(batch)] == [True, True]

    @pytest.mark.parametrize(
        ("image", "says"),
        [
            ("absent.png", "the image absent.png does not exist"),
            (np.ones((4, 4, 3)), "not float64"),
            (np.ones((4, 4), np.float32), "not float32"),
            (np.ones((4, 4), bool), "not bool"),
        ],
    )
    def test_what_is_no_image_is_refused(self, first: tuple[Arguments, Path], image: object, says: str) -> None:
        model = load_model(first[1])
        with pytest.raises(KubetrainError, match=says):
            model.predict([image])
        with pytest.raises(KubetrainError, match="image 1 is not an image that can be read"):
            model.predict([png(), b"no image"])

    def test_from_s3_a_version_or_the_latest_one(
        self, first: tuple[Arguments, Path], s3: EmbeddedS3, bucket: str
    ) -> None:
        store = open_store(f"s3://{bucket}/models", s3.url)
        for path in first[1].rglob("*.*"):
            store.write(path.relative_to(first[1]).as_posix(), path)
        version = load_model(first[1]).model_json["version"]
        for place in ("models", "models/", f"models/{version}"):
            model = load_model(f"s3://{bucket}/{place}", s3_endpoint=s3.url)
            assert model.predict([png()]) == load_model(first[1]).predict([png()])
        with pytest.raises(KubetrainError, match=rf"no model is published under s3://{bucket}/other"):
            load_model(f"s3://{bucket}/other", s3_endpoint=s3.url)

    def test_a_damaged_or_missing_file_is_refused(self, models: Path, framework: str) -> None:
        weights = change(models) / EXPORTS[framework]
        content = weights.read_bytes()
        weights.write_bytes(content[:-1] + b"!")
        with pytest.raises(KubetrainError, match=rf"{weights} is damaged"):
            load_model(models)
        weights.unlink()
        with pytest.raises(KubetrainError, match=rf"{weights} is missing"):
            load_model(models)
        with pytest.raises(KubetrainError, match=r"absent has no published model"):
            load_model(models / "absent")

    def test_weights_that_are_links_to_other_files_are_refused(
        self, models: Path, framework: str, tmp_path: Path
    ) -> None:
        if framework == "pytorch":
            pytest.skip("PyTorch's files have no links")
        import h5py

        weights = change(models) / EXPORTS[framework]
        shutil.copy(weights, tmp_path / "secret.h5")
        with h5py.File(weights, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            name = next(name for name in names if name.endswith("/vars/0"))
            del file[name]
            file[name] = h5py.ExternalLink(tmp_path / "secret.h5", name)
        describe(models, weights)
        with pytest.raises(KubetrainError, match=r"it contains more than numbers"):
            load_model(models)

    def test_a_file_with_code_is_refused(self, models: Path, framework: str, tmp_path: Path) -> None:
        place_code(models, framework, tmp_path / "was-run")
        with pytest.raises(KubetrainError, match="perhaps executable code"):
            load_model(models)
        assert not (tmp_path / "was-run").exists()

    def test_another_preprocessing_or_release_is_refused(self, models: Path) -> None:
        described = json.loads((models / "latest.json").read_text())
        change(models, input={**described["input"], "mean": [0, 0, 0]})
        with pytest.raises(KubetrainError, match=r"another preprocessing than this release has \(mean\)"):
            load_model(models)
        change(models, input=described["input"], config={**described["config"], "magic": 1})
        with pytest.raises(KubetrainError, match=r"with other settings \(magic\)"):
            load_model(models)

    def test_the_recorded_size_counts_if_the_default_of_the_model_has_changed(self, models: Path) -> None:
        before = load_model(models)
        change(models, config={**before.model_json["config"], "image_size": 0})
        assert load_model(models).predict([png()]) == before.predict([png()])

    def test_other_weights_than_those_of_its_network_are_refused(self, models: Path) -> None:
        described = json.loads((models / "latest.json").read_text())
        change(models, config={**described["config"], "model_args": {"width": 9}})
        with pytest.raises(KubetrainError, match="do not fit the model that its settings build"):
            load_model(models)

    def test_a_task_of_your_own_is_found_in_your_code_and_may_read_a_dataset(
        self, framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = f"own_{framework}_task"
        for folder in ("code", "data"):
            (tmp_path / folder).mkdir()
        (tmp_path / "code" / f"{module}.py").write_text(TASKS[framework])
        (tmp_path / "data" / "names.txt").write_text("cat dog")
        config = TrainConfig(model=f"{module}:build", metric="loss")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(tmp_path / "code")
            arguments = exported(framework, tmp_path / "run", tmp_path / "data", config, learns=False)
            evaluated(framework, arguments)
        models = published(arguments, tmp_path / "models").parent
        forget(module)
        with pytest.raises(KubetrainError, match=rf"cannot import '{module}'.* or pass code, the folder with"):
            load_model(models)
        monkeypatch.setattr("sys.path", [*sys.path])
        with pytest.raises(KubetrainError, match=r"cannot be built without .*names\.txt: pass data_dir"):
            load_model(models, code=tmp_path / "code")
        model = load_model(models, code=tmp_path / "code", data_dir=tmp_path / "data")
        batch = np.ones((3, 4), np.float32) if framework == "tensorflow" else ones(3, 4)
        assert {each.name for each in model.predict(batch)} <= {"cat", "dog"}
        monkeypatch.setattr(sys.modules[module], "build", no_connection)
        with pytest.raises(KubetrainError, match=r"'own_.*' cannot be built: no connection$"):
            load_model(models, code=tmp_path / "code", data_dir=tmp_path / "data")

    @pytest.mark.parametrize("file", ["{}_alone.py", "{}_folder/task.py", "{}_package/__init__.py"])
    def test_code_of_a_name_that_is_imported_from_elsewhere_is_not_confused_with_it(
        self, framework: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
    ) -> None:
        for folder in ("before", "code"):
            path = tmp_path / folder / file.format(framework)
            path.parent.mkdir(parents=True)
            path.write_text("")
        module = file.format(framework).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        described = json.loads((models / "latest.json").read_text())
        change(models, config={**described["config"], "model": f"{module}:build", "metric": "loss"}, input={})
        monkeypatch.syspath_prepend(tmp_path / "before")
        importlib.import_module(module)
        with pytest.raises(KubetrainError, match=rf"'{module}' is already imported from .*/before/.* restart Python"):
            load_model(models, code=tmp_path / "code")
        with pytest.raises(KubetrainError, match=f"'{module}' has no function 'build'"):
            load_model(models, code=tmp_path / "before")

    def test_a_model_of_a_script_is_not_guessed(self, models: Path) -> None:
        described = json.loads((models / "latest.json").read_text())
        change(models, config={**described["config"], "entry": {"script": "train.py"}})
        with pytest.raises(KubetrainError, match="was made by your own script"):
            load_model(models)


class TestLatest:
    """The evaluation of a new model measures the latest one too."""

    def measured(self, framework: str, arguments: Arguments, models: Path, folder: Path) -> dict[str, Any]:
        fetch_latest(DirectoryStore(models), folder)
        latest: dict[str, Any] = evaluated(framework, arguments, folder)["latest"]
        return latest

    def test_both_are_measured_on_the_same_samples_each_with_its_own_network(
        self, framework: str, first: tuple[Arguments, Path], digits: Path, tmp_path: Path
    ) -> None:
        arguments, models = first
        other = exported(framework, tmp_path / "run", digits, TrainConfig(batch_size=100), learns=False)
        latest = self.measured(framework, other, models, tmp_path / "latest")
        before = arguments.output.read_evaluation()["metrics"]
        assert latest["metrics"] == pytest.approx(before)
        intervals = arguments.output.read_evaluation()["intervals"]
        assert intervals.keys() == before.keys() == {"accuracy", "loss"}
        assert all(low < before[name] < high for name, (low, high) in intervals.items())
        assert (latest["version"], latest["problem"]) == (load_model(models).model_json["version"], "")
        assert other.output.read_evaluation()["metrics"]["loss"] != pytest.approx(before["loss"])

    def test_metrics_that_both_models_share_are_read_before_the_latest_one_uses_them(
        self, framework: str, first: tuple[Arguments, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        program: Any = importlib.import_module(f"{package_of(framework)}.evaluate")
        measured = Measured(1, {"perplexity": 3.0}, {})
        tally = Mock(measured=lambda: measured)
        monkeypatch.setattr(program, "measure", lambda *_: (tally, ClassPredictions(())))
        monkeypatch.setattr(program, "measure_latest", lambda *_: setattr(tally, "measured", dict))
        monkeypatch.setattr(program, "write_evaluation", Mock())
        program.prepare_devices = lambda config, role: None
        program.evaluate(first[0])
        assert measured in program.write_evaluation.call_args.args

    def test_without_a_published_model_the_evaluation_says_so(
        self, framework: str, first: tuple[Arguments, Path], tmp_path: Path
    ) -> None:
        nothing = {"version": "", "metrics": {}, "problem": ""}
        assert self.measured(framework, first[0], tmp_path / "none", tmp_path / "latest") == nothing
        assert "latest" not in evaluated(framework, first[0])

    def test_what_cannot_be_compared_is_a_problem_and_the_new_model_is_evaluated(
        self, framework: str, first: tuple[Arguments, Path], models: Path, tmp_path: Path
    ) -> None:
        arguments, described = first[0], json.loads((models / "latest.json").read_text())

        def problem(**changes: Any) -> str:
            change(models, **{**described, **changes})
            latest = self.measured(framework, arguments, models, tmp_path / "latest")
            assert (latest["metrics"], latest["version"]) == ({}, described["version"])
            assert arguments.output.read_evaluation()["metrics"]["loss"] > 0
            return str(latest["problem"])

        assert "use another model.uri" in problem(framework="other")
        assert "other classes" in problem(classes=["a", "b"])
        other = {**described["config"], "model_args": {"width": 9}}
        assert "do not fit the model" in problem(config=other, config_digest="other")
        assert "another preprocessing" in problem(input={**described["input"], "mean": [0, 0, 0]})
        failing = {**described["config"], "model": "absent.task:build"}
        assert "cannot import 'absent.task'" in problem(config=failing, config_digest="other", input={})
        weights = change(models) / EXPORTS[framework]
        weights.write_bytes(weights.read_bytes()[:-1])
        assert f"{EXPORTS[framework]} is damaged" in problem()
        weights.unlink()
        assert f"{EXPORTS[framework]} is missing" in problem()

    def test_code_in_it_is_not_run(
        self, framework: str, first: tuple[Arguments, Path], models: Path, tmp_path: Path
    ) -> None:
        place_code(models, framework, tmp_path / "was-run")
        latest = self.measured(framework, first[0], models, tmp_path / "latest")
        assert "perhaps executable code" in latest["problem"]
        assert not (tmp_path / "was-run").exists()


def place_code(models: Path, framework: str, mark: Path) -> None:
    """Replace the weights with a pickle that creates a file, and its hash with that of the pickle."""

    class Opens:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (mark,)

    weights = change(models) / EXPORTS[framework]
    weights.write_bytes(pickle.dumps(Opens()))
    describe(models, weights)


def describe(models: Path, weights: Path) -> None:
    """Put the size and the hash of the changed weights into model.json."""
    content = weights.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    change(models, files=[{"name": weights.name, "size": len(content), "sha256": digest}])


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (8, 8, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def ones(*shape: int) -> Any:
    import torch

    return torch.ones(*shape)


def no_connection(*_: object) -> None:
    raise OSError("no connection")


def forget(module: str) -> None:
    sys.modules.pop(module, None)
