"""Generates docs/settings.md, with the default and meaning of every setting, from their declarations.

python -m kubetrain_pipelines.definitions.settings_page >docs/settings.md
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from kubetrain_components.run.names import GROUPS, OPTIONS, SETTINGS, RunSetting
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, parameters_of
from kubetrain_trainer.settings.base import Settings, as_text
from kubetrain_trainer.settings.config import GROUPS as SUBJECTS
from kubetrain_trainer.settings.config import TrainConfig

HEAD = """# Settings

A setting has one name everywhere, GROUP.NAME:

```yaml
# flowers.yaml
pipeline: train-pytorch
data: {uri: s3://my-bucket/flowers}
model: {name: torchvision:resnet50, uri: s3://my-bucket/models, gate: "accuracy>=0.9"}
pods: {workers: 4, gpus: 1}
train: {epochs: 30, batch_size: 64, learning_rate: 0.1, recipe: standard}
```

Every command takes this file, such as `kubetrain run flowers.yaml`. `--set train.epochs=1` replaces one setting of it,
and `kubetrain.run("flowers.yaml", train={"epochs": 1})` does the same in Python. In the form of Kubeflow Pipelines, the
field is `train_epochs`. Settings without a field of their own go into the field of their group, such as `train_more`,
as a JSON object: `{"clip_norm": 0.5}`.

`--set` takes text as it is (`train.entry="train.py --lr 1e-3"`), one part of an object (`pods.nccl.NCCL_DEBUG=INFO`),
other values as YAML or JSON, and with `@` the content of a file (`pods.pod=@pod.yaml`).
"""


def page() -> str:
    return "\n".join([HEAD, *_groups(), *_objects(), *_forms()])


def _groups() -> Iterator[str]:
    for group, meaning in GROUPS.items():
        yield from (f"## `{group}`: {meaning}", "")
        of_group = [
            item for item in SETTINGS.values() if item.group == group and not item.field.metadata["is_internal"]
        ]
        if group != "train":
            yield from _table(of_group)
            continue
        names = {heading: kind.names() for heading, kind in SUBJECTS.items()}
        yield from _table(item for item in of_group if item.kind is not TrainConfig)
        for heading, of_subject in names.items():
            in_subject = [item for item in of_group if item.field.name in of_subject]
            yield from ((f"### {heading}", "", *_table(in_subject)) if in_subject else ())
        changeable = ", ".join(f"`train.{name}`" for name in TrainConfig.names_with("is_changeable"))
        yield from (f"A run that resumes may change {changeable}.", "")


def _objects() -> Iterator[str]:
    """The options that the objects among the training settings hold."""
    for name, kinds in OPTIONS.items():
        for choice, kind in kinds.items():
            yield from (f"### Options in `{name}`{f' with {choice}' if choice else ''}", "", *_options(kind))


def _options(kind: type[Settings]) -> Iterator[str]:
    return _table(RunSetting(kind, field) for field in fields(kind))


def _forms() -> Iterator[str]:
    yield from ("## Fields of the forms", "")
    for pipeline in PIPELINES:
        names = ", ".join(
            f"`{item.name}`{' (required)' if item.is_required else ''}" for item in parameters_of(pipeline)
        )
        yield from (f"{pipeline}: {names}.", "")


def _table(settings: Iterable[RunSetting]) -> Iterator[str]:
    yield from ("| setting | default | meaning |", "| --- | --- | --- |")
    for setting in settings:
        default = "required" if setting.field.metadata["is_required"] else _code(setting.default)
        yield f"| `{setting.name}` | {default} | {setting.meaning.replace('|', chr(92) + '|')} |"
    yield ""


def _code(value: Any) -> str:
    return "" if value == "" else f"`{as_text(value)}`"


if __name__ == "__main__":
    print(page(), end="")
