"""A published model as a folder: model.json, and the files that it lists.

<models>/latest.json             the model.json of the latest version
<models>/<version>/model.json    what loading the model needs to know
<models>/<version>/…             its files
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kubetrain_trainer.durable_files import read_json, sha256_of
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.manifest import PUBLISHED_DESCRIPTION
from kubetrain_trainer.settings.config import TrainConfig

SCHEMA = "kubetrain/model/v2"
LATEST = "latest.json"
TEXTS = ("version", "run_id", "image", "dataset_digest", "config_digest")
"""Names in model.json whose values are strings."""
HIDDEN = "…"
"""Stands in the settings for what may be a secret."""


class DamagedModel(KubetrainError):
    """Files of a published model are missing, or differ from its model.json."""


@dataclass(frozen=True)
class ModelFolder:
    path: Path
    description: Mapping[str, Any]

    @property
    def framework(self) -> str:
        return str(self.description["framework"])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.description["classes"])

    def config(self) -> TrainConfig:
        """Return the settings of its training.

        Raises:
            KubetrainError: if model.json does not have all of them, or has settings of another release.
        """
        recorded, model = self.description["config"], f"model {self.description['version']}"
        if hidden := [name for name, value in recorded.get("model_args", {}).items() if HIDDEN in repr(value)]:
            raise KubetrainError(f"{model} was published without model.args {', '.join(hidden)}, which may be a secret")
        if unknown := [name for name in recorded if name not in TrainConfig.names()]:
            raise KubetrainError(
                f"{model} was published by another release, with other settings ({', '.join(unknown)})"
            )
        return TrainConfig.from_dict(recorded)


def open_model(folder: Path) -> ModelFolder:
    """Verify every file of a version, or of the latest version in a folder of models.

    Raises:
        KubetrainError: if the model is missing or damaged.
    """
    if (folder / PUBLISHED_DESCRIPTION).is_file() or not (folder / LATEST).is_file():
        return _open_version(folder)
    latest = read_description(folder / LATEST)
    model = _open_version(folder / latest["version"])
    check_latest(latest, model, str(folder))
    return model


def _open_version(folder: Path) -> ModelFolder:
    model = ModelFolder(folder, read_description(folder / PUBLISHED_DESCRIPTION))
    for file in model.description["files"]:
        check_file(folder / file["name"], file)
    return model


def check_latest(latest: Mapping[str, Any], model: ModelFolder, models: str) -> None:
    """
    Raises:
        DamagedModel: if latest.json is another one than the model.json of the version that it names.
    """
    if latest != model.description:
        raise DamagedModel(
            f"{models}/{LATEST} differs from {latest['version']}/{PUBLISHED_DESCRIPTION}: replace it by a copy of the "
            f"{PUBLISHED_DESCRIPTION} of the version that should be the latest"
        )


def check_version(model: ModelFolder, version: str) -> None:
    """
    Raises:
        DamagedModel: if the folder of this version has the model.json of another.
    """
    if (named := model.description["version"]) != version:
        raise DamagedModel(
            f"the folder {version} has the {PUBLISHED_DESCRIPTION} of version {named}: name a copy of a version as the "
            "version itself"
        )


def listed_file(names: Iterable[str], files: Iterable[Mapping[str, Any]]) -> str:
    """Return the first of these names that the description of a model lists; empty if it lists none.

    Other files in its folder are not verified.
    """
    listed = {file["name"] for file in files}
    return next((name for name in names if name in listed), "")


def read_description(path: Path) -> dict[str, Any]:
    """Read model.json or latest.json.

    Raises:
        KubetrainError: if there is none, or it is another program's.
    """
    try:
        description = read_json(path)
    except FileNotFoundError:
        raise KubetrainError(
            f"{path.parent} has no published model: it has neither {PUBLISHED_DESCRIPTION} nor {LATEST}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DamagedModel(f"{path} is not valid JSON: publish the model again") from error
    if not describes_model(description):
        raise KubetrainError(f"{path} does not describe a model that this release of kubetrain can read")
    return dict(description)


def describes_model(description: Any) -> bool:
    """Return True if this is the content of a model.json, whose files lie within its folder."""
    try:
        names = [file["name"] for file in description["files"]]
        texts, classes = [description[name] for name in TEXTS], description["classes"]
        return (
            description["schema"] == SCHEMA
            and bool(names)
            and all(map(is_inside, [*names, description["version"]]))
            and all(isinstance(text, str) for text in texts)
            and len({*classes}) == len(classes)
            and isinstance(description["config"], dict)
        )
    except (TypeError, KeyError, AttributeError):
        return False


def is_inside(name: Any) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def check_file(path: Path, described: Mapping[str, Any]) -> None:
    """
    Raises:
        DamagedModel: if it is missing, or differs from what model.json says.
    """
    if not path.is_file():
        raise DamagedModel(f"{path} is missing: publish the model again")
    if (path.stat().st_size, sha256_of(path)) != (described.get("size"), described.get("sha256")):
        raise DamagedModel(f"{path} is damaged: it has other content than model.json says; publish the model again")
