"""A rule: the texts by which a cause is recognized, what it means, and what to do about it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

ANYTHING = "*"


class Certainty(IntEnum):
    """The strength of a match, in the order in which a diagnosis shows them."""

    CAUSE = 1
    LIKELY = 2
    UNKNOWN = 3
    EFFECT = 4
    SLOW = 5
    OVERCOME = 6
    FACT = 7

    @property
    def words(self) -> str:
        return WORDS[self]


WORDS = {
    Certainty.CAUSE: "proven",
    Certainty.LIKELY: "likely",
    Certainty.UNKNOWN: "unknown",
    Certainty.EFFECT: "a consequence",
    Certainty.SLOW: "slow",
    Certainty.OVERCOME: "overcome",
}


@dataclass(frozen=True)
class Sample:
    line: str
    source: str
    """A test that provokes it, the library that writes it, or the address of a report."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    name: str
    title: str
    texts: tuple[str, ...]
    """Any of them, in one line. A * stands for anything."""
    pattern: str = ""
    """A regular expression for the line, if the texts alone match too much. If it has a group, each text of the group
    counts as a match of its own."""
    explanation: str = ""
    remedy: str = ""
    certainty: Certainty = Certainty.CAUSE
    after: tuple[str, ...] = ()
    """Names of rules of which this one is a consequence, if they are found too."""
    overcomes: tuple[str, ...] = ()
    """Names of rules whose earlier matches in the same log no longer count."""
    needs: str = ""
    """Name of a rule without which this one means nothing."""
    samples: tuple[Sample, ...] = ()

    @cached_property
    def literals(self) -> tuple[bytes, ...]:
        """The longest literal of each text: a line without any of them cannot match."""
        return tuple(max(text.split(ANYTHING), key=len).encode() for text in self.texts)

    @cached_property
    def match(self) -> Callable[[bytes], re.Match[bytes] | None]:
        patterns = (".*?".join(map(re.escape, text.split(ANYTHING))) for text in self.texts)
        return re.compile((self.pattern or "|".join(patterns)).encode()).search
