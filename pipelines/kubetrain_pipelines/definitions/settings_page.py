"""Generates docs/settings.md, with the default and meaning of every parameter and setting, from their declarations.

python -m kubetrain_pipelines.definitions.settings_page >docs/settings.md
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, describe, parameters_of
from kubetrain_trainer.settings.base import Settings, as_text
from kubetrain_trainer.settings.config import TrainConfig

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
        for each in parameters_of(pipeline):
            yield _row(each.name, "required" if each.is_required else _code(each.default), each.description)
        yield ""


def _settings() -> Iterator[str]:
    for kind, title in SETTINGS.items():
        yield from (f"## {title}", "", SETTINGS_HEAD, "", "| setting | default | meaning |", "| --- | --- | --- |")
        for each in fields(kind):
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            yield _row(each.name, _code(default), describe(each))
        yield ""


def _row(name: str, default: str, meaning: str) -> str:
    return f"| `{name}` | {default} | {meaning.replace('|', chr(92) + '|')} |"


def _code(value: Any) -> str:
    return "" if value == "" else f"`{as_text(value)}`"


if __name__ == "__main__":
    print(page(), end="")
