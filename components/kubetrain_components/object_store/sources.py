"""The sources of a dataset: one URI, or several by the folder that each becomes, as JSON text."""

import json
from collections.abc import Mapping

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import parse_value

SEVERAL = "{"
"""Begins the text of several sources."""


def sources_of(uri: str, setting: str = "data.uri") -> dict[str, str]:
    """Return the URIs by folder; a single one has no folder.

    Raises:
        InvalidSetting: if a name cannot be that of a folder, or its URI is not a text.
    """
    if not uri.startswith(SEVERAL):
        return {"": uri}
    sources: dict[str, str] = parse_value(setting, dict, uri)
    for folder, each in sources.items():
        if folder in ("", ".", "..") or "/" in folder or not folder.isprintable():
            raise InvalidSetting(f"{setting} has a source named {folder!r}: name each as the folder that it becomes")
        if not isinstance(each, str) or each.startswith(SEVERAL):
            raise InvalidSetting(f"{setting}.{folder} must be a URI, not {each!r}")
    if not sources:
        raise InvalidSetting(f"{setting} names no source: write {{train: s3://BUCKET/PREFIX, …}}")
    return sources


def text_of(sources: Mapping[str, str]) -> str:
    """Return the same text for the same sources in any order."""
    return sources[""] if [*sources] == [""] else json.dumps(dict(sorted(sources.items())), ensure_ascii=False)
