"""Find in logs of any size the lines that rules match: in one pass, and with little memory.

Most lines have nothing that a rule looks for. Of the others, logs repeat many: of lines that differ only in numbers and
addresses the first is searched for the texts of rules, and the others are skipped.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from kubetrain_pipelines.diagnose.rule import Rule
from kubetrain_pipelines.diagnose.table import FIRST_ERROR, RULES, START
from kubetrain_pipelines.diagnose.tracebacks import raised_in

GRAM = 4
TABLE_BITS = 20
"""The table has a megabyte, which fits into a CPU's cache."""
Numbers = np.ndarray[Any, Any]

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 16
"""Longer lines are cut into pieces."""
MAX_SEEN = 100_000
"""Number of different lines to remember, in about 10 MB."""
HEX_DIGITS = b"0123456789abcdefABCDEF"
LINE_END, CARRIAGE_RETURN = b"\n", b"\r"
LINE_ENDS = (LINE_END, CARRIAGE_RETURN)
"""Progress bars end their lines with carriage returns, which editors do not count as lines."""
COLORS = re.compile(rb"\x1b\[[\d;]*[A-Za-z]")
"""Sequences that set colors or move the cursor of a terminal."""
ORDINARY_LINES = (
    b"[kubetrain] step=40/800 epoch=0 loss=0.8127 accuracy=0.7312 learning_rate=0.0125 samples_per_second=4127\n",
    b"node-1:71:71 [0] NCCL INFO Channel 00/0 : 0 -> 1 via P2P comm 0x55d0\n",
)
"""Lines like those that logs repeat most."""


class Prefilter:
    def __init__(self, texts: Iterable[bytes], samples: Iterable[bytes]) -> None:
        """
        Args:
            texts: Texts of at least four bytes.
            samples: Lines of logs.
        """
        counts = Counter(gram for sample in samples for gram in _grams(sample))
        rarest = {min(_grams(text), key=lambda gram: (counts[gram], _ordinary_bytes(gram))) for text in texts}
        self._wanted = np.concatenate([_numbers(gram) for gram in rarest])
        self._table = np.zeros(1 << TABLE_BITS, bool)
        self._table[_hashes(self._wanted)] = True

    def places(self, block: bytes) -> Numbers:
        """Return at least one place in each text that the block contains, and few others."""
        if len(block) < GRAM:
            return np.empty(0, np.intp)
        numbers = _numbers(block)
        places = np.flatnonzero(self._table[_hashes(numbers)])
        return places[np.isin(numbers[places], self._wanted)]


def _grams(text: bytes) -> Sequence[bytes]:
    return [text[start : start + GRAM] for start in range(len(text) - GRAM + 1)]


def _ordinary_bytes(gram: bytes) -> int:
    return sum(item in b" abcdefghijklmnopqrstuvwxyz" for item in gram)


def _numbers(block: bytes) -> Numbers:
    """Return the four bytes at each place as a number."""
    return np.ndarray(len(block) - GRAM + 1, np.uint32, block, strides=(1,))


def _hashes(numbers: Numbers) -> Numbers:
    hashes: Numbers = numbers * np.uint32(2654435761) >> np.uint32(32 - TABLE_BITS)
    return hashes


@dataclass(frozen=True)
class Match:
    rule: Rule
    source: str
    line: int
    """Number of the line in its log, from 1; 0: it is not from a log."""
    text: str
    is_overcome: bool = False
    """True if the training started again afterwards."""


class Lines(NamedTuple):
    """Lines that a rule may match."""

    numbers: Numbers
    """Their numbers in the log, from 1."""
    texts: list[bytes]
    are_errors: Numbers
    """True for those at the end of a traceback."""

    def part(self, part: slice) -> Self:
        return type(self)(self.numbers[part], self.texts[part], self.are_errors[part])


class LogScan:
    """The first line of one log that each rule matches, since the training last started in it."""

    def __init__(self, source: str, *, is_log: bool = True) -> None:
        self._source, self._is_log = source, is_log
        self._found: dict[tuple[str, bytes], Match] = {}
        self._seen: set[int] = set()
        self._lines = 0
        self._started_at = 0
        self._overcome_at: dict[str, int] = {}
        """Lines before which the matches of a rule no longer count."""

    def read(self, path: Path) -> Self:
        with path.open("rb", buffering=0) as file:
            rest = b""
            while chunk := file.read(CHUNK_BYTES):
                text = rest + chunk
                end = max(map(text.rfind, LINE_ENDS)) + 1
                if len(text) - end > MAX_LINE_BYTES:
                    end = len(text)
                self.add(text[:end])
                rest = text[end:]
        self.add(rest)
        return self

    def add(self, block: bytes) -> None:
        """Add whole lines."""
        lines = _lines_in_question(block, self._lines)
        self._lines += block.count(LINE_END)
        text = LINE_END.join(lines.texts)
        start = max(map(text.rfind, START.literals))
        index = text.count(LINE_END, 0, start) if start >= 0 else 0
        self._add(lines.part(slice(index)))
        if start >= 0:
            self._seen.clear()  # what was seen before a start does not count after it
        self._add(lines.part(slice(index, None)))

    def _add(self, lines: Lines) -> None:
        fresh = self._fresh(lines.texts)
        texts = [lines.texts[index] for index in fresh]
        for index, rule in _matches(texts, np.flatnonzero(lines.are_errors[fresh]).tolist()):
            self._keep(rule, int(lines.numbers[fresh[index]]) if self._is_log else 0, texts[index])

    def matches(self) -> Iterator[Match]:
        for match in self._found.values():
            yield replace(match, is_overcome=match.line < self._counts_from(match.rule))

    def _fresh(self, lines: list[bytes]) -> list[int]:
        """Return the indexes of the lines that earlier blocks do not have."""
        keys = [*map(hash, LINE_END.join(lines).translate(None, HEX_DIGITS).split(LINE_END))] if lines else []
        fresh = [index for index, key in enumerate(keys) if key not in self._seen]
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        self._seen.update(keys)
        return fresh

    def _keep(self, rule: Rule, number: int, line: bytes) -> None:
        if rule is START:
            self._started_at = number
        if rule.overcomes:
            self._overcome_at |= dict.fromkeys(rule.overcomes, number)
            self._seen.clear()
        group = _group(rule, line)
        if group:  # lines of other groups may differ from this one only in numbers
            self._seen.discard(hash(line.translate(None, HEX_DIGITS)))
        key = (rule.name, group)
        earlier = self._found.get(key)
        if earlier is None or earlier.line < self._counts_from(rule):
            self._found[key] = Match(rule, self._source, number, _printable(line[:MAX_LINE_BYTES]))

    def _counts_from(self, rule: Rule) -> int:
        return max(self._started_at, self._overcome_at.get(rule.name, 0))


def _lines_in_question(block: bytes, lines_before: int) -> Lines:
    raised = [*raised_in(block)]
    places = [np.array([item.place for item in raised if item.is_ignored == ignored], int) for ignored in (False, True)]
    content = np.frombuffer(block, np.uint8)
    newlines = content == LINE_END[0]
    ends = np.flatnonzero(newlines | (content == CARRIAGE_RETURN[0]))
    errors, ignored = (np.searchsorted(ends, place) for place in places)
    chosen = np.union1d(np.searchsorted(ends, _prefilter().places(block)), errors)
    chosen = np.setdiff1d(chosen, ignored)
    first, last = np.append(0, ends + 1)[chosen], np.append(ends, len(block))[chosen]
    texts = [COLORS.sub(b"", block[start:end]) for start, end in zip(first.tolist(), last.tolist(), strict=True)]
    numbers = np.searchsorted(np.flatnonzero(newlines), first) + 1 + lines_before
    return Lines(numbers, texts, np.isin(chosen, errors))


@cache
def _prefilter() -> Prefilter:
    rules = (*RULES, FIRST_ERROR)
    samples = (sample.line.encode() for rule in rules for sample in rule.samples)
    return Prefilter((text for rule in rules for text in rule.literals), (*samples, *ORDINARY_LINES))


def _printable(line: bytes) -> str:
    """Return the line as text without characters that would control the terminal."""
    return "".join(item if item.isprintable() else " " for item in line.decode(errors="replace")).strip()


def _group(rule: Rule, line: bytes) -> bytes:
    match = rule.match(line)
    return match[1] if match and match.lastindex else b""


def _matches(lines: list[bytes], errors: Iterable[int]) -> list[tuple[int, Rule]]:
    """Return the lines that a rule matches, in their order, with the first such rule of the table.

    Args:
        errors: Indexes of lines that are errors, whether a rule knows them or not.
    """
    text = LINE_END.join(lines)
    ends = [*accumulate(len(line) + 1 for line in lines)]
    found: dict[int, Rule] = {}
    for rule in (*RULES, FIRST_ERROR):
        for index in _candidates(text, ends, rule.literals):
            if index not in found and rule.match(lines[index]):
                found[index] = rule
    unexplained = (index for index in errors if b"ChildFailedError" not in lines[index])
    found = {**dict.fromkeys(unexplained, FIRST_ERROR), **found}
    return sorted(found.items(), key=lambda each: each[0])


def _candidates(text: bytes, ends: list[int], literals: Iterable[bytes]) -> Iterator[int]:
    """Yield the indexes of the lines that contain a literal."""
    for literal in literals:
        position = text.find(literal)
        while position >= 0:
            index = bisect_right(ends, position)
            yield index
            position = text.find(literal, ends[index])
