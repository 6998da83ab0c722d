"""Millions of names in two arrays: a third of the memory of strings, and processes can share it."""

import os
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Self, overload


class PackedNames(Sequence[str]):
    def __init__(self, text: Any, ends: Any) -> None:
        """
        Args:
            text: Buffer of the names, one after the other, as the file system encodes them.
            ends: Array of the places where they end.
        """
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, names: Iterable[str]) -> Self:
        text, ends = bytearray(), array("q")
        for name in names:
            text += os.fsencode(name)
            ends.append(len(text))
        return cls(text, ends)

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        start = self.ends[index - 1] if index else 0
        return os.fsdecode(bytes(self.text[start : self.ends[index]]))
