"""Recognize what may be a secret, so that it is neither printed nor written to a parameter file."""

import re
from typing import Any

SECRET_NAME = re.compile(
    r"(?i)(key|token|secret|passw(or)?d|passphrase|credentials?)$|(^|[_-])(key|token|secret|password)([_-]|$)"
)
NOT_SECRET = {"GOOGLE_APPLICATION_CREDENTIALS", "key"}
"""The path of a file, and a field of tolerations and selectors."""
IN_TEXT = re.compile(r"(?i)((?:key|token|secret|passw(?:or)?d|passphrase|credentials?)['\"]?(?:\s*[=:]\s*|\s+))(\S+)")
IN_URL = re.compile(r"(://[^/\s:@]*:)[^@\s]+@")
HIDDEN = "…"


def is_secret(name: str, value: str) -> bool:
    """Return True if a variable of this name and value may hold a secret."""
    named = name not in NOT_SECRET and SECRET_NAME.search(name) is not None
    return bool(value) and (named or IN_URL.search(value) is not None)


def without_secrets(path: str, value: Any) -> Any:
    if isinstance(value, list):
        before = ["", *(str(each) for each in value)]
        return [
            HIDDEN if option.startswith("-") and "=" not in option and is_secret(option, "x") else _text(each)
            for option, each in zip(before, value, strict=False)
        ]
    variable = re.search(r"env\[([^\]]+)\]\.value$", path)
    name = variable[1] if variable else path.rpartition(".")[2]
    return HIDDEN if isinstance(value, str) and is_secret(name, value) else _text(value)


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return IN_URL.sub(rf"\1{HIDDEN}@", IN_TEXT.sub(rf"\1{HIDDEN}", value))
