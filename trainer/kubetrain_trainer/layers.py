"""The layers of a model, by the names of its parameters."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from kubetrain_trainer.errors import InvalidSetting, did_you_mean

NUMBERED = re.compile(r"(?:[^._/]*[._/])*?[^._/]*\d(?=[._/])")
"""The start of a name up to its first part that ends in a digit, such as layer3 or features.5."""


def rate_factors(names: Iterable[str], layer_rate: float) -> Mapping[str, float]:
    """Return the factor of each parameter's learning rate: 1 in the last layer, and less in each one before."""
    layers = {name: layer_of(name) for name in names}
    order = list(dict.fromkeys(layers.values()))
    return {name: layer_rate ** (len(order) - 1 - order.index(layer)) for name, layer in layers.items()}


def layer_of(name: str) -> str:
    numbered = NUMBERED.match(name)
    return numbered[0] if numbered else re.sub(r"[./][^./]*$", "", name)


def matching(patterns: str, names: Iterable[str]) -> set[str]:
    """Return the names that match one of the patterns, or are within one that does.

    Raises:
        InvalidSetting: if a pattern matches none.
    """
    all_names, found = list(names), set[str]()
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        matched = {name for name in all_names if any(fnmatchcase(name, each) for each in (pattern, f"{pattern}[./]*"))}
        if not matched:
            parts = {re.split(r"[./]", name)[0] for name in all_names}
            raise InvalidSetting(f"freeze: the model has nothing called '{pattern}': {did_you_mean(pattern, parts)}")
        found |= matched
    return found
