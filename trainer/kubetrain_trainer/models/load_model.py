"""Load a published model, to predict with it as its evaluation did.

    model = load_model("kubetrain-workspace/models/train-pytorch")
    for found in model.predict(["rose.jpg", "tulip.jpg"]):
        print(found.name, found.probability)

Every file is verified against model.json, and no file may contain code. A task of your own is imported by its name.
"""

import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any

from kubetrain_trainer.data.given_images import images_among
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.image_input import with_recorded_input
from kubetrain_trainer.output.model_folder import check_version, open_model
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import is_own_code

NO_DATASET = Path("/no-dataset")
"""A folder that does not exist."""


@dataclass(frozen=True)
class Prediction:
    """The answer of a classifier to an image."""

    name: str
    """The class with the greatest probability."""
    probability: float
    probabilities: Mapping[str, float]
    """The probability of each class."""


@dataclass(frozen=True, kw_only=True)
class LoadedModel(ABC):
    network: Any
    """PyTorch's module, in evaluation mode and on the CPU, or the Keras model."""
    model_json: Mapping[str, Any]
    """Everything that was published of the model."""
    config: TrainConfig
    """The settings of its training."""

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.model_json["classes"])

    @property
    def metrics(self) -> Mapping[str, float | None]:
        """The metrics that its evaluation on the test split measured."""
        return dict(self.model_json["metrics"])

    def predict(self, inputs: Any) -> Any:
        """Return a Prediction for each image, or the outputs of a model that has no classes.

        Args:
            inputs: Images: a list of paths, bytes of files, Pillow images or arrays (height, width, 3) of uint8, or one
                of these. Or a batch that is ready for the network, such as normalized tensors; a task of your own takes
                only such batches.
        """
        images = None if is_own_code(self.config) else images_among(inputs)
        if images is not None and not images:
            return []
        outputs = self.outputs_of_batch(inputs) if images is None else self.outputs_of_images(images)
        return self._predictions(self.probabilities(outputs)) if self.classes else outputs

    def _predictions(self, rows: Sequence[Sequence[float]]) -> list[Prediction]:
        named = [dict(zip(self.classes, row, strict=True)) for row in rows]
        return [Prediction(best := max(scores, key=scores.__getitem__), scores[best], scores) for scores in named]

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Load the weights of the model in this folder into the network."""

    @abstractmethod
    def outputs_of_images(self, images: Sequence[Any]) -> Any:
        """Return the outputs for images, which are prepared as in the evaluation."""

    @abstractmethod
    def outputs_of_batch(self, batch: Any) -> Any:
        """Return the outputs for a batch that is ready for the network."""

    @abstractmethod
    def probabilities(self, outputs: Any) -> list[list[float]]:
        """Return the probability of each class for each output of a classifier."""


def load_model(
    path: str | PathLike[str], *, code: str | PathLike[str] | None = None, data_dir: str | PathLike[str] | None = None
) -> LoadedModel:
    """Load a version of a model, or the latest one in a folder of models.

    Args:
        code: Folder with the module of a task of your own, if Python does not find it.
        data_dir: Folder of a dataset, if building a task of your own reads one.

    Raises:
        KubetrainError: if the model is missing or damaged, or its network cannot be built.
    """
    model = open_model(Path(path))
    check_version(model, model.path.resolve().name)
    trained_with = model.config()
    if trained_with.entry:
        raise KubetrainError(
            f"the model in {model.path} was made by your own script, which alone can build its network: load its files "
            "as the script wrote them"
        )
    if code is not None:
        _import_from(Path(code), trained_with)
    loader, settings = _loader(model.framework), with_recorded_input(trained_with, model.description)
    network = _built(loader, settings, model.classes, data_dir)
    loaded: LoadedModel = loader.Loaded(network=network, model_json=model.description, config=settings)
    loaded.load(model.path)
    return loaded


def _import_from(code: Path, config: TrainConfig) -> None:
    if is_own_code(config):
        _refuse_other_code(code, config.model.partition(":")[0])
    sys.path.insert(0, str(code.absolute()))


def _refuse_other_code(code: Path, module: str) -> None:
    """Check that no module of this name, or package around it, is imported already from elsewhere."""
    for name in accumulate(module.split("."), "{}.{}".format):
        imported = getattr(sys.modules.get(name), "__file__", None)
        files = _files_of(code, name)
        if imported and files and Path(imported).resolve() not in files:
            raise KubetrainError(
                f"'{name}' is already imported from {imported}, and Python imports a name once: to load this model "
                f"with the code in {code}, restart Python, or load it in another process"
            )


def _files_of(code: Path, module: str) -> list[Path]:
    place = code.joinpath(*module.split("."))
    return [file.resolve() for file in (place.with_name(f"{place.name}.py"), place / "__init__.py") if file.is_file()]


def _loader(framework: str) -> Any:
    try:
        return importlib.import_module(f"{package_of(framework)}.loaded_model")
    except ModuleNotFoundError as error:
        raise KubetrainError(
            f"the package '{error.name}' is not installed, which a model of {framework} needs: install it with "
            f"`pip install -e '.[{framework}]'` in kubetrain's clone"
        ) from error


def _built(loader: Any, config: TrainConfig, classes: Sequence[str], data_dir: str | PathLike[str] | None) -> Any:
    folder = Path(data_dir) if data_dir is not None else NO_DATASET
    try:
        return loader.build_network(config, classes, folder)
    except InvalidSetting as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise KubetrainError(f"{error}; or pass code, the folder with the module") from error
    except OSError as error:
        if not _is_below(folder, error.filename):
            raise KubetrainError(f"'{config.model}' cannot be built: {error}") from error
        raise KubetrainError(
            f"'{config.model}' cannot be built without {error.filename}: pass data_dir, the folder of a dataset"
        ) from error


def _is_below(folder: Path, file: Any) -> bool:
    return isinstance(file, str | PathLike) and Path(file).absolute().is_relative_to(folder.absolute())
