"""Find the places in a log where one of many texts may be: in one pass, however many texts there are.

Each text has four bytes that are rare in logs, as far as samples tell. Only places with such four bytes are found.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

GRAM = 4
TABLE_BITS = 20
"""The table has a megabyte, which fits into a CPU's cache."""
Numbers = np.ndarray[Any, Any]


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
    return sum(each in b" abcdefghijklmnopqrstuvwxyz" for each in gram)


def _numbers(block: bytes) -> Numbers:
    """Return the four bytes at each place as a number."""
    return np.ndarray(len(block) - GRAM + 1, np.uint32, block, strides=(1,))


def _hashes(numbers: Numbers) -> Numbers:
    hashes: Numbers = numbers * np.uint32(2654435761) >> np.uint32(32 - TABLE_BITS)
    return hashes
