"""The layers of a model, by the names of its parameters."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain

from kubetrain_trainer.errors import InvalidSetting, did_you_mean

NUMBER = re.compile(r"\d+(?=[._/]|(?<!onv\d)[a-z][._/](?!\d))")
"""The number that ends a part of a name, such as layer3, features.5 or the block1 of block1a; conv2d has none."""
MIN_FACTOR = 1e-3
EXAMPLES = 3
log = logging.getLogger(__name__)


def rate_factors(names: Iterable[str], layer_rate: float) -> Mapping[str, float]:
    """Return the factor of each parameter's learning rate: 1 in the last layer, and less in each one before."""
    layers = layers_by_name(names)
    order = list(dict.fromkeys(layers.values()))
    return {name: layer_rate ** (len(order) - 1 - order.index(layer)) for name, layer in layers.items()}


def warn_of_slow_layers(factors: Iterable[float], layer_rate: float) -> None:
    if (least := min(factors, default=1.0)) < MIN_FACTOR:
        log.warning(
            "train.layer_rate=%g lets the first of many layers learn at %.0e of the learning rate: choose one nearer "
            "to 1",
            layer_rate,
            least,
        )


def layers_by_name(names: Iterable[str]) -> dict[str, str]:
    """Return each name up to its first number that others have another one for, unlike the 2 of dinov2.layer.7."""
    numbered = {
        name: [(name[: match.start()], name[: match.end()]) for match in NUMBER.finditer(name)] for name in names
    }
    counts = Counter(before for before, _ in set(chain.from_iterable(numbered.values())))
    return {name: _layer(name, found, counts) for name, found in numbered.items()}


def _layer(name: str, numbered: Sequence[tuple[str, str]], counts: Mapping[str, int]) -> str:
    whole = [layer for _, layer in numbered] or [re.sub(r"[./][^./]*$", "", name)]
    return next((layer for before, layer in numbered if counts[before] > 1), whole[0])


def patterns_in(text: str) -> list[str]:
    return [*filter(None, map(str.strip, text.split(",")))]


def matching(patterns: str, names: Iterable[str]) -> set[str]:
    """Return the names that match one of the patterns, or are within one that does.

    Raises:
        InvalidSetting: if a pattern matches none.
    """
    all_names: list[str] = list(names)
    found: set[str] = set()
    for pattern in patterns_in(patterns):
        matched = {name for name in all_names if any(fnmatchcase(name, glob) for glob in (pattern, f"{pattern}[./]*"))}
        if not matched:
            depth = len(re.split(r"[./]", pattern))
            like = list(dict.fromkeys("".join(re.split(r"([./])", name)[: 2 * depth - 1]) for name in all_names))
            suggestion = did_you_mean(pattern, like, examples=like[:EXAMPLES])
            raise InvalidSetting(f"train.freeze: the model has nothing called '{pattern}': {suggestion}")
        found |= matched
    return found
