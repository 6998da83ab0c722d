"""The errors at the ends of Python's tracebacks, of any name, and what the trainer says of a failure."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from kubetrain_trainer.failures import KNOWN_FAILURES

PLACE = "{where}"
_BY_NAME = {known.name: known for known in KNOWN_FAILURES}

BEGIN = re.compile(rb"Traceback \(most recent call last\)")
MAX_BYTES = 1 << 16
"""The longest traceback to read, as far as its error."""
TIME = r"\d{4}-\d\d-\d\d\S+\s"
SENDER = r"\[[^\]\s]+\]:? ?"
GROUP = r" *\| "
"""The margin of an ExceptionGroup."""
PREFIX = rf"(?:{TIME}|{SENDER})*(?:{GROUP})?"
"""The text that Kubernetes, torchrun, PyTorch and kubetrain write before each line of a log."""
OF_LINE = re.compile(PREFIX.encode())
SENDERS = re.compile(SENDER.encode())
IGNORED = b"Exception ignored in"


class Raised(NamedTuple):
    place: int
    """The place where the line of the error begins."""
    is_ignored: bool
    """True if Python says so: nothing can catch what is raised while an object is deleted."""


def raised_in(block: bytes) -> Iterator[Raised]:
    """Yield the errors of the tracebacks in a part of a log, whose senders may write between each other's lines."""
    for begin in BEGIN.finditer(block):
        start = block.rfind(b"\n", 0, begin.start()) + 1
        sender, _ = _split(block, start)
        before = block[block.rfind(b"\n", 0, max(start - 1, 0)) + 1 : start]
        place = _end(block, begin.end(), sender)
        if place is not None:
            yield Raised(place, IGNORED in before)


def _end(block: bytes, begin: int, sender: bytes) -> int | None:
    """Return the place of the sender's next line that is not indented."""
    place = block.find(b"\n", begin) + 1
    while 0 < place < min(len(block), begin + MAX_BYTES):
        of_line, text = _split(block, place)
        is_indented = block[text : text + 1].isspace() or BEGIN.match(block, text)
        if of_line == sender and not is_indented:
            return place
        place = block.find(b"\n", place) + 1
    return None


def _split(block: bytes, start: int) -> tuple[bytes, int]:
    """Return who sent the line that starts here, and where its text begins."""
    prefix = OF_LINE.match(block, start)
    assert prefix is not None, "it also matches nothing"
    return b"".join(SENDERS.findall(prefix[0])), prefix.end()


def patterns_of(name: str) -> tuple[str, ...]:
    return _BY_NAME[name].patterns


def said(name: str) -> str:
    """Return the text of the trainers' error, from which only the place is left out."""
    return f"error: *{_sentence(name)[0].replace(PLACE, '*')}"


def explanation(name: str) -> str:
    words = _sentence(name)[0].replace(f" {PLACE}", "")
    return f"{words[0].upper()}{words[1:]}."


def remedy(name: str) -> str:
    words = _sentence(name)[1]
    return f"{words[0].upper()}{words[1:]}."


def _sentence(name: str) -> tuple[str, str]:
    words, _, remedy = _BY_NAME[name].sentence.partition(": ")
    return words, remedy
