"""Names that a listing must have: if one is missing but not empty, its ranges were not in the order of the keys' bytes.

A server that lists folder by folder puts "train/" before "train.csv" and "train-extra/". A range of keys ends at the
first key after it, so that what such a server lists later is lost, although each page is in order.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence


class UnseenNames:
    """Keys, and folders of which no key was seen yet."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names) - {""}
        self._sorted = sorted(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def see(self, keys: Sequence[str]) -> None:
        """Record the keys of a page, sorted."""
        if not self._names:
            return
        first, last = keys[0], keys[-1]
        near = self._sorted[bisect_left(self._sorted, first) : bisect_right(self._sorted, last)]
        self._names.difference_update(each for each in near if keys[bisect_left(keys, each)].startswith(each))
        self._names.difference_update(first[: slash.end()] for slash in re.finditer("/", first))
