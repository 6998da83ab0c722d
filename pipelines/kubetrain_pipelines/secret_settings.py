"""Remarks on settings whose values may be secrets: parameters of a run are shown and recorded."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubetrain_components.secret_values import has_secret, is_secret

NAMES_OF_SECRETS = {"s3_secret", "secret_env", "env_secrets", "image_pull_secrets"}
REMARK = (
    "{} looks like a secret, which whoever sees the run can read: let the program read a variable, which on a cluster "
    "secret_env sets"
)


def secret_remarks(parameters: Mapping[str, Any]) -> list[str]:
    return [REMARK.format(name) for name in _secrets_in(parameters)]


def _secrets_in(values: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for name, value in values.items():
        if name in NAMES_OF_SECRETS:
            continue
        for each in [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []:
            if isinstance(each, Mapping):
                yield from _secrets_in(each, f"{place}{name}.")
        is_text = isinstance(value, str) and is_secret(name, value)
        if is_text or (isinstance(value, list) and has_secret(each for each in value if isinstance(each, str))):
            yield f"{place}{name}"
