"""Find in logs of any size the lines that rules match: in one pass, and with little memory.

Logs repeat themselves. Of lines that differ only in numbers and addresses the first is searched for the texts of rules,
and the others are skipped.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Self

from kubetrain_pipelines.diagnose.rule import Rule
from kubetrain_pipelines.diagnose.table import FIRST_ERROR, RULES, START

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 16
"""Longer lines are cut into pieces."""
MAX_SEEN = 100_000
"""Number of different lines to remember, in about 10 MB."""
HEX_DIGITS = b"0123456789abcdefABCDEF"
LINE_END = b"\n"


@dataclass(frozen=True)
class Match:
    rule: Rule
    source: str
    line: int
    """Number of the line in its log, from 1; 0: it is not from a log."""
    text: str
    is_overcome: bool = False
    """True if the training started again afterwards."""


class LogScan:
    """The first line of one log that each rule matches, since the training last started in it."""

    def __init__(self, source: str, *, is_log: bool = True) -> None:
        self._source, self._is_log = source, is_log
        self._found: dict[tuple[str, bytes], Match] = {}
        self._seen: set[int] = set()
        self._lines = 0
        self._started_at = 0

    def read(self, path: Path) -> Self:
        with path.open("rb", buffering=0) as file:
            rest = b""
            while chunk := file.read(CHUNK_BYTES):
                block, end, rest = (rest + chunk).replace(b"\r", LINE_END).rpartition(LINE_END)
                if len(rest) > MAX_LINE_BYTES:
                    block, end, rest = block + end + rest, LINE_END, b""
                if end:
                    self.add(block)
        if rest:
            self.add(rest)
        return self

    def add(self, block: bytes) -> None:
        """Add whole lines, without the end of the last one."""
        start = max(map(block.rfind, START.literals))
        if start >= 0:
            before, end, _ = block[:start].rpartition(LINE_END)
            if end:
                self._add(before)
            self._seen.clear()  # what was seen before a start does not count after it
            block = block[len(before + end) :]
        self._add(block)

    def _add(self, block: bytes) -> None:
        lines = block.split(LINE_END)
        fresh = self._fresh(block)
        for index, rule in _matches([lines[index] for index in fresh]):
            number = self._lines + fresh[index] + 1 if self._is_log else 0
            self._keep(rule, number, lines[fresh[index]])
        self._lines += len(lines)

    def matches(self) -> Iterator[Match]:
        for match in self._found.values():
            yield replace(match, is_overcome=match.line < self._started_at)

    def _fresh(self, block: bytes) -> list[int]:
        """Return the indexes of the lines that earlier blocks do not have."""
        keys = [*map(hash, block.translate(None, HEX_DIGITS).split(LINE_END))]
        fresh = [index for index, key in enumerate(keys) if key not in self._seen]
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        self._seen.update(keys)
        return fresh

    def _keep(self, rule: Rule, number: int, line: bytes) -> None:
        if rule is START:
            self._started_at = number
        group = _group(rule, line)
        if group:  # lines of other groups may differ from this one only in numbers
            self._seen.discard(hash(line.translate(None, HEX_DIGITS)))
        key = (rule.name, group)
        earlier = self._found.get(key)
        if earlier is None or earlier.line < self._started_at:
            text = line[:MAX_LINE_BYTES].decode(errors="replace").strip()
            self._found[key] = Match(rule, self._source, number, text)


def _group(rule: Rule, line: bytes) -> bytes:
    match = rule.match(line)
    return match[1] if match and match.lastindex else b""


def _matches(lines: list[bytes]) -> list[tuple[int, Rule]]:
    """Return the lines that a rule matches, in their order, with the first such rule of the table."""
    text = LINE_END.join(lines)
    ends = [*accumulate(len(line) + 1 for line in lines)]
    found: dict[int, Rule] = {}
    for rule in (*RULES, FIRST_ERROR):
        for index in _candidates(text, ends, rule.literals):
            if index not in found and rule.match(lines[index]):
                found[index] = rule
    return sorted(found.items(), key=lambda each: each[0])


def _candidates(text: bytes, ends: list[int], literals: Iterable[bytes]) -> Iterator[int]:
    """Yield the indexes of the lines that contain a literal."""
    for literal in literals:
        position = text.find(literal)
        while position >= 0:
            index = bisect_right(ends, position)
            yield index
            position = text.find(literal, ends[index])
