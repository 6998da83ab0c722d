"""Manifests as YAML that kubectl reads as they are meant.

kubectl's parser takes more words for other types than PyYAML's, which therefore leaves them unquoted: `n` is false, and
`1234e5` is a number.
"""

import re
from collections.abc import Iterable
from typing import Any

import yaml

from kubetrain_components.manifest import Manifest

PLAIN = re.compile(r"[A-Za-z/][^:#]*|[A-Za-z/]\S*")
"""Text that begins like a word, which no parser takes for a number or a date."""
OTHER_TYPES = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null")


class _Dumper(yaml.SafeDumper):
    """Quotes more than it has to."""


def _represented(dumper: yaml.SafeDumper, text: str) -> Any:
    is_plain = PLAIN.fullmatch(text) and not OTHER_TYPES.fullmatch(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain or "\n" in text else "'")


_Dumper.add_representer(str, _represented)


def as_yaml(manifests: Iterable[Manifest], **layout: Any) -> str:
    text: str = yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, **layout)
    return text
