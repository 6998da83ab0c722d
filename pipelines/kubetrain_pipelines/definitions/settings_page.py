"""Generates docs/settings.md, with the default and meaning of every parameter and setting, from their declarations.

python -m kubetrain_pipelines.definitions.settings_page >docs/settings.md
"""

from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, describe, parameters_of
from kubetrain_trainer.settings.augmentation import Recipe
from kubetrain_trainer.settings.base import Settings, as_text, default_of
from kubetrain_trainer.settings.config import GROUPS, TrainConfig
from kubetrain_trainer.settings.optimizer_args import OPTIMIZERS
from kubetrain_trainer.settings.schedule_args import SCHEDULES
from kubetrain_trainer.settings.synthetic_data import SyntheticData

SETTINGS: dict[type[Settings], str] = {
    TrainConfig: "`train_config`: training",
    Placement: "`placement`: where and how pods run",
    Storage: "`storage`: where data is stored, and how pods access it",
}
PIPELINES_HEAD = (
    "Set these in the form of the Kubeflow Pipelines UI, or with `--set NAME=VALUE` on the command line. A run on this "
    "machine takes only those that apply there."
)
SETTINGS_HEAD = (
    "Set these in the JSON object of this parameter, or one by one with `--set NAME=VALUE` on the command line."
)


def page() -> str:
    return "\n".join(["# Parameters and settings", "", *_pipelines(), *_settings()])


def _pipelines() -> Iterator[str]:
    yield from ("## Parameters of the pipelines", "", PIPELINES_HEAD, "")
    for pipeline in PIPELINES:
        yield from (f"### {pipeline}", "", "| parameter | default | meaning |", "| --- | --- | --- |")
        for item in parameters_of(pipeline):
            yield _row(item.name, "required" if item.is_required else _code(item.default), item.description)
        yield ""


def _settings() -> Iterator[str]:
    for kind, title in SETTINGS.items():
        yield from (f"## {title}", "", SETTINGS_HEAD, "")
        if kind is TrainConfig:
            for heading, group in GROUPS.items():
                yield from (f"### {heading}", "", *_table(group))
            yield from _objects()
            changeable = ", ".join(f"`{name}`" for name in TrainConfig.names_with("is_changeable"))
            yield from (f"A run that resumes may change {changeable}.", "")
        else:
            yield from _table(kind)


def _objects() -> Iterator[str]:
    """The options that the objects among the training settings hold."""
    for kind in (SyntheticData, Recipe):
        yield from (f"### Options in `{kind.PARAMETER}`", "", *_table(kind))
    for name, kinds in (("optimizer_args", OPTIMIZERS), ("schedule_args", SCHEDULES)):
        for choice, kind in kinds.items():
            yield from (f"### Options in `{name}` for {choice}", "", *_table(kind))


def _table(kind: type[Settings]) -> Iterator[str]:
    yield from ("| setting | default | meaning |", "| --- | --- | --- |")
    for field in fields(kind):
        if not field.metadata["is_internal"]:
            yield _row(field.name, _code(default_of(field)), _meaning(field))
    yield ""


def _meaning(field: Field[Any]) -> str:
    """Return the meaning, with the facts of the declaration that say when the setting applies."""
    only = {"pytorch": "PyTorch: "}.get(field.metadata["only"], "")
    used_with = "{}={}: ".format(*field.metadata["used_with"]) if field.metadata["used_with"] else ""
    return f"{only}{used_with}{describe(field)}"


def _row(name: str, default: str, meaning: str) -> str:
    return f"| `{name}` | {default} | {meaning.replace('|', chr(92) + '|')} |"


def _code(value: Any) -> str:
    return "" if value == "" else f"`{as_text(value)}`"


if __name__ == "__main__":
    print(page(), end="")
