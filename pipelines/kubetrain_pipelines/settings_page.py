"""docs/settings.md: every parameter and setting with its default and meaning, from where they are declared.

python -m kubetrain_pipelines.settings_page >docs/settings.md
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from typing import Any

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.compile import PIPELINES
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.settings import Settings, as_text

SETTINGS: dict[type[Settings], str] = {
    TrainConfig: "`train_config`: how a training trains",
    Placement: "`placement`: where and how pods run",
    Storage: "`storage`: where a run's data is, and how pods get it",
}
PIPELINES_HEAD = "Each is a field of the form in the Kubeflow Pipelines UI, and a name for `--set` on the command line."
SETTINGS_HEAD = "Of the parameter of this name, a JSON object; on the command line each by `--set NAME=VALUE`."


def page() -> str:
    return "\n".join(["# Parameters and settings", "", *_pipelines(), *_settings()])


def _pipelines() -> Iterator[str]:
    yield from ("## Parameters of the pipelines", "", PIPELINES_HEAD, "")
    for name, pipeline in PIPELINES.items():
        yield from (f"### {name}", "", "| parameter | default | what it says |", "| --- | --- | --- |")
        yield from _rows(pipeline)
        yield ""


def _rows(pipeline: Callable[..., object]) -> Iterator[str]:
    function = pipeline.pipeline_func  # type: ignore[attr-defined]
    meanings = dict(re.findall(r"^        (\w+): (.*)$", function.__doc__, re.MULTILINE))
    for name, parameter in inspect.signature(function).parameters.items():
        default = "required" if parameter.default is parameter.empty else _code(parameter.default)
        yield _row(name, default, meanings[name])


def _settings() -> Iterator[str]:
    for kind, title in SETTINGS.items():
        yield from (f"## {title}", "", SETTINGS_HEAD, "", "| setting | default | what it says |", "| --- | --- | --- |")
        for each in fields(kind):
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            choices = [choice for choice in each.metadata["choices"] if choice]
            among = f" ({', '.join(choices)})" if choices else ""
            yield _row(each.name, _code(default), each.metadata["meaning"] + among)
        yield ""


def _row(name: str, default: str, meaning: str) -> str:
    return f"| `{name}` | {default} | {meaning.replace('|', chr(92) + '|')} |"


def _code(value: Any) -> str:
    return "" if value == "" else f"`{as_text(value)}`"


if __name__ == "__main__":
    print(page(), end="")
