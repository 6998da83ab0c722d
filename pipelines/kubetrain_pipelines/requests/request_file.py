"""The file that describes a run, which every command takes: a pipeline, and settings by group."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS
from kubetrain_components.run.names import FORM_FIELDS, GROUPS, find_setting
from kubetrain_components.run.request import Request, value_of
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES
from kubetrain_pipelines.requests.yaml_text import lines_of, only_document, parse_documents
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

DEFAULT_PIPELINE = "train-pytorch"
SUFFIXES = (".yaml", ".yml", ".json")
PIPELINE, SCHEDULE = "pipeline", "schedule"
WITHOUT_OWN = (*PIPELINES, *COMMAND_FRAMEWORKS)
"""Names of pipelines and frameworks whose only parameters are settings."""


@dataclass(frozen=True, kw_only=True)
class RequestFile:
    """The pipeline and the settings that a file asks for, or the name of a pipeline in its place."""

    pipeline: str = DEFAULT_PIPELINE
    request: Request = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that only the user's own pipeline has, by name."""
    schedule: Any = None
    """The group `schedule` of the file, of which `kubetrain schedule apply` makes a schedule."""
    is_record: bool = False
    """Of a run that was, without what may be a secret."""


def read_source(source: str) -> RequestFile:
    """
    Args:
        source: The name of a pipeline, a compiled one, or a file that describes a run; empty: train-pytorch.

    Raises:
        InvalidSetting: if the file cannot be read, or describes no run, with the line.
    """
    if not source or not source.endswith(SUFFIXES):
        return RequestFile(pipeline=source or DEFAULT_PIPELINE)
    text = _text_of(Path(source))
    documents = parse_documents(text, source)
    if any(isinstance(document, Mapping) and "pipelineInfo" in document for document in documents):
        return RequestFile(pipeline=source)
    content = only_document(documents, source)
    if not isinstance(content, Mapping):
        raise InvalidSetting(
            f"{source} describes no run: write `{PIPELINE}: {DEFAULT_PIPELINE}`, and settings by group"
        )
    if isinstance(content.get("request"), Mapping):  # the record of a run, run.json
        return replace(_read(source, content["request"], {}), is_record=True)
    return _read(source, content, lines_of(text))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{path} cannot be read ({error}): pass a file that describes a run") from error


def _read(source: str, content: Mapping[str, Any], lines: Mapping[tuple[str, ...], int]) -> RequestFile:
    request: Request = {}
    for group in (name for name in content if name in GROUPS):
        named = content[group] if content[group] is not None else {}
        if not isinstance(named, Mapping):
            raise InvalidSetting(f"{_place(source, lines, group)}{group} must have settings by name, not {named!r}")
        for key, value in named.items():
            try:
                request.setdefault(group, {})[key] = value_of(find_setting(f"{group}.{key}"), value)
            except InvalidSetting as error:
                raise InvalidSetting(f"{_place(source, lines, group, str(key))}{error}") from None
    pipeline = content.get(PIPELINE, DEFAULT_PIPELINE)
    if not isinstance(pipeline, str):
        raise InvalidSetting(f"{_place(source, lines, PIPELINE)}{PIPELINE} must be a name, not {pipeline!r}")
    own = {name: value for name, value in content.items() if name not in (*GROUPS, PIPELINE, SCHEDULE)}
    for name in own if pipeline in WITHOUT_OWN else ():
        group, _, key = FORM_FIELDS[name].name.partition(".") if name in FORM_FIELDS else str(name).partition(".")
        in_group = f"write {key} under {group}" if key and group in GROUPS else ""
        instead = in_group or did_you_mean(str(name), (*GROUPS, PIPELINE, SCHEDULE))
        raise InvalidSetting(f"{_place(source, lines, name)}there is no group '{name}': {instead}")
    return RequestFile(pipeline=pipeline, request=request, own=own, schedule=content.get(SCHEDULE))


def _place(source: str, lines: Mapping[tuple[str, ...], int], *keys: str) -> str:
    line = lines.get(keys)
    return f"{source}, line {line}: " if line else f"{source}: "
