"""`kubetrain settings` and `kubetrain new`: the settings of a run explained, and written into a file to begin with."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kubetrain_components.run.names import GROUPS, OPTIONS, SETTINGS, RunSetting, find_setting
from kubetrain_components.run.request import MORE
from kubetrain_pipelines.definitions.pipeline_parameters import TRAINING, has_setting
from kubetrain_trainer.durable_files import write_atomically
from kubetrain_trainer.errors import InvalidSetting, KubetrainError, check_one_of
from kubetrain_trainer.settings.base import as_text

WIDTH = 110
PLACES = {"data.uri": "s3://<BUCKET>/<DATASET>", "model.uri": "s3://<BUCKET>/<MODELS>"}


def show_settings(wanted: str, *, as_json: bool) -> None:
    found = chosen(wanted)
    if as_json:
        print(json.dumps([facts_of(setting) for setting in found], indent=2))
    elif "." in wanted:
        print("\n".join(explained(found[0])))
    else:
        print("\n".join(listed(found)))


def chosen(wanted: str) -> list[RunSetting]:
    """Return the settings of a group, the one of this name, or all.

    Raises:
        InvalidSetting: if there are none.
    """
    shown = [setting for setting in SETTINGS.values() if not setting.field.metadata["is_internal"]]
    if not wanted or wanted in GROUPS:
        return [setting for group in GROUPS for setting in shown if setting.group == group == (wanted or group)]
    return [find_setting(wanted)]


def listed(settings: Sequence[RunSetting]) -> Iterator[str]:
    """Yield a line for each setting: name, default and the beginning of its meaning."""
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, 160)
    names = max(len(setting.name) for setting in settings)
    for setting in settings:
        default = "required" if setting.field.metadata["is_required"] else as_text(setting.default)
        begin = f"{setting.name:{names}}  {default:14}  "
        yield begin + textwrap.shorten(setting.meaning, max(20, width - len(begin)), placeholder=" …")


def explained(setting: RunSetting) -> Iterator[str]:
    facts = facts_of(setting)
    yield from (setting.name, "", *textwrap.wrap(setting.sentence, WIDTH), "")
    for name in ("default", "choices", "used by", "form", "resume"):
        if facts[name] not in ("", []):
            value = facts[name]
            yield f"{name:8}  {', '.join(map(str, value)) if isinstance(value, list) else as_text(value)}"
    for needs, kind in OPTIONS.get(setting.name, {}).items():
        options = [RunSetting(kind, field) for field in fields(kind)]
        yield from ("", f"options{f' with {needs}' if needs else ''}:")
        yield from (
            f"  {option.key.partition('.')[2]} ({as_text(option.default)}): {option.meaning}" for option in options
        )


def facts_of(setting: RunSetting) -> dict[str, Any]:
    declared = setting.field.metadata
    pipelines = [pipeline for pipeline in TRAINING if has_setting(pipeline, setting)]
    return {
        "name": setting.name,
        "meaning": setting.meaning,
        "default": None if declared["is_required"] else setting.default,
        "is_required": declared["is_required"],
        "choices": [choice for choice in declared["choices"] if choice],
        "used by": [*pipelines, "clusters only" if setting.is_on_cluster else "also on one machine"],
        "form": setting.form_field if declared["in_form"] else f"{setting.group}_{MORE}",
        "resume": "a run that resumes may change it" if declared["is_changeable"] else "",
    }


def write_new(file: Path, pipeline: str) -> None:
    """Write a file that describes a run, with a comment on each setting that many runs change.

    Raises:
        KubetrainError: if the file exists, which the user may have edited.
    """
    check_one_of(TRAINING, "--pipeline", pipeline)
    if file.suffix not in (".yaml", ".yml"):
        raise InvalidSetting(f"{file} does not end in .yaml: name a file such as {file.stem}.yaml")
    if file.exists():
        raise KubetrainError(f"{file} exists: name another file, or delete it")
    try:
        write_atomically(file, "\n".join(new_lines(pipeline)).encode())
    except OSError as error:
        raise KubetrainError(f"{file} cannot be written ({error.strerror}): name another file") from error


def new_lines(pipeline: str) -> Iterator[str]:
    yield from ("# `kubetrain settings` lists all settings, and `kubetrain settings GROUP.NAME` explains one.", "")
    yield f"pipeline: {pipeline}"
    for group, meaning in GROUPS.items():
        yield from ("", f"# {meaning}", f"{group}:")
        for setting in chosen(group):
            if setting.field.metadata["in_form"] and has_setting(pipeline, setting):
                place = PLACES.get(setting.name)
                yield from (f"  # {line}" for line in textwrap.wrap(setting.meaning, WIDTH))
                yield f"  {setting.key}: {place}" if place else f"  # {setting.key}: {json.dumps(setting.default)}"
    yield ""
