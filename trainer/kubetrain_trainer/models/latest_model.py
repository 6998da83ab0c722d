"""The latest published model, which the gate compares a new one with: a folder beside the evaluation.

<folder>/fetched.json   its version, and why it could not be fetched, if so; no version: none is published
<folder>/model/         the version, as it was published
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Mapping

from kubetrain_trainer.durable_files import read_json, write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.model_folder import ModelFolder, open_model
from kubetrain_trainer.processes.entry_point import SENTENCE_LENGTH, Arguments
from kubetrain_trainer.settings.config import TrainConfig

FETCHED, MODEL = "fetched.json", "model"
OF_THIS_RUN = (
    *("data", "validation_split", "test_split", "synthetic"),
    *("batch_size", "loader_workers", "precision"),
)
"""Settings of the data and the machine, which are the same for both models."""
WITHOUT_RECIPE: Mapping[str, Any] = {"recipe": "none", "augment": {}}
"""Evaluations change no images, and the recipe of the latest model may not fit this run's data and batch size."""
Metrics = Mapping[str, float]
Measure = Callable[[ModelFolder, TrainConfig], Metrics]
"""A function that evaluates a model, which was trained with these settings."""


def note_fetched(folder: Path, version: str, problem: str) -> None:
    write_json(folder / FETCHED, {"version": version, "problem": problem})


def measure_latest(arguments: Arguments, classes: Sequence[str], measure: Measure) -> dict[str, Any]:
    """Return what evaluation.json says of the latest model: its version, and its metrics or why it has none.

    It is empty if the gate does not compare.
    """
    if arguments.latest is None:
        return {}
    fetched = read_json(arguments.latest / FETCHED)
    latest = {"metrics": {}, **fetched}
    if fetched["version"] and not fetched["problem"]:
        latest.update(_measured(arguments, classes, measure))
    return {"latest": latest}


def _measured(arguments: Arguments, classes: Sequence[str], measure: Measure) -> dict[str, Any]:
    try:
        model = open_model(arguments.latest / MODEL)  # type: ignore[operator]
        config = _comparable(model, arguments, classes)
        return {"metrics": dict(measure(model, config))}
    except KubetrainError as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - also if your own code raises it, the new model is evaluated
        problem = f"its evaluation failed with {type(error).__name__}: {' '.join(str(error).split())}"
    print(f"the latest model cannot be evaluated: {problem}", flush=True)
    return {"problem": problem[:SENTENCE_LENGTH]}


def _comparable(model: ModelFolder, arguments: Arguments, classes: Sequence[str]) -> TrainConfig:
    """Return the settings to evaluate the model with.

    Raises:
        KubetrainError: if its values would not mean the same as those of this run's model.
    """
    framework, ours = arguments.output.read_config()["framework"], arguments.config
    if model.framework != framework:
        raise KubetrainError(f"it was trained with {model.framework}, not {framework}: use another model.uri")
    if model.classes != tuple(classes):
        raise KubetrainError("it has other classes than the dataset has now")
    if model.description["config_digest"] == ours.digest:
        return ours
    return replace(model.config(), **WITHOUT_RECIPE, **{name: getattr(ours, name) for name in OF_THIS_RUN})
