"""Warnings of settings that look like secrets, which everyone who sees a run could read."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubetrain_components.secret_values import has_secret, is_secret

NAMES_OF_SECRETS = {"secret", "secret_env"}
"""Settings that name secrets of Kubernetes."""
REMARK = (
    "{} looks like a secret, and everyone who sees the run can read it: let the program read a variable, which on a "
    "cluster pods.secret_env sets"
)


def secret_warnings(values: Mapping[str, Any]) -> list[str]:
    return [REMARK.format(name) for name in _secrets_in(values)]


def _secrets_in(values: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for name, value in values.items():
        if name in NAMES_OF_SECRETS:
            continue
        for item in [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []:
            if isinstance(item, Mapping):
                yield from _secrets_in(item, f"{place}{name}.")
        is_text = isinstance(value, str) and is_secret(name, value)
        if is_text or (isinstance(value, list) and has_secret(text for text in value if isinstance(text, str))):
            yield f"{place}{name}"
