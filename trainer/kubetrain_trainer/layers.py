"""The layers of a model, by the names of its parameters."""

import logging
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from kubetrain_trainer.errors import InvalidSetting, did_you_mean

NUMBERED = re.compile(r"(?:[^._/]*[._/])*?[^._/]*\d(?=[._/]|(?<!onv\d)[a-z][._/](?!\d))")
"""The start of a name up to the number of its first numbered part: layer3, features.5, or block1 of block1a. The 2 of
conv2d numbers nothing."""
LEAST_FACTOR = 1e-3
log = logging.getLogger(__name__)


def rate_factors(names: Iterable[str], layer_rate: float) -> Mapping[str, float]:
    """Return the factor of each parameter's learning rate: 1 in the last layer, and less in each one before."""
    layers = {name: layer_of(name) for name in names}
    order = list(dict.fromkeys(layers.values()))
    return {name: layer_rate ** (len(order) - 1 - order.index(layer)) for name, layer in layers.items()}


def warn_of_slow_layers(factors: Iterable[float], layer_rate: float) -> None:
    if (least := min(factors, default=1.0)) < LEAST_FACTOR:
        log.warning(
            "layer_rate=%g lets the first of many layers learn at %.0e of the learning rate: choose one nearer to 1",
            layer_rate,
            least,
        )


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
