"""Millions of records sorted by key in bounded memory: beyond a limit they are kept in temporary files and merged."""

import heapq
import marshal
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

MAX_IN_MEMORY = 300_000
"""Records in memory, about 250 bytes each."""
MAX_FILES = 64
BATCH = 1_000
LENGTH_BYTES = 8

T = TypeVar("T", bound=tuple[Any, ...])
U = TypeVar("U", bound=tuple[Any, ...])


class Sorted(Generic[T]):
    """Tuples of strings and numbers that are sorted by the first field, a key; equal keys keep their order."""

    def __init__(self, make: Callable[[Iterable[Any]], T], folder: Path | None = None) -> None:
        """
        Args:
            make: Makes a record from its fields.
            folder: Folder for the temporary files, which have no names; default: the system's.
        """
        self._make = make
        self._folder = folder
        self._recent: list[T] = []
        self._is_sorted = True
        self._files: list[BinaryIO] = []
        self._in_files = 0

    def add(self, record: T) -> None:
        self._recent.append(record)
        self._is_sorted = False
        if len(self._recent) >= MAX_IN_MEMORY:
            self._move_to_file()

    def extend(self, records: Iterable[T]) -> None:
        left = iter(records)
        while batch := list(islice(left, BATCH)):
            self._recent += batch
            self._is_sorted = False
            if len(self._recent) >= MAX_IN_MEMORY:
                self._move_to_file()

    def __len__(self) -> int:
        return self._in_files + len(self._recent)

    def __iter__(self) -> Iterator[T]:
        """Iterate in order; records must not be added at the same time."""
        if not self._files:
            self._sort()
            return iter(self._recent)
        self._move_to_file()
        return self._merged()

    def _sort(self) -> None:
        if not self._is_sorted:
            self._recent.sort(key=itemgetter(0))
            self._is_sorted = True

    def _move_to_file(self) -> None:
        if not self._recent:
            return
        self._sort()
        self._in_files += len(self._recent)
        self._files.append(self._write(self._recent))
        self._recent = []
        if len(self._files) > MAX_FILES:
            self._files = [self._write(self._merged())]

    def _merged(self) -> Iterator[T]:
        return heapq.merge(*(self._read(file.fileno()) for file in self._files), key=itemgetter(0))

    def _write(self, records: Iterable[T]) -> BinaryIO:
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - read until this object is gone
        left = map(tuple, records)
        while batch := list(islice(left, BATCH)):
            packed = marshal.dumps(batch)
            file.write(len(packed).to_bytes(LENGTH_BYTES, "big") + packed)
        file.flush()
        return file

    def _read(self, file: int) -> Iterator[T]:
        at = 0
        while head := os.pread(file, LENGTH_BYTES, at):
            length = int.from_bytes(head, "big")
            yield from map(self._make, marshal.loads(os.pread(file, length, at + LENGTH_BYTES)))  # noqa: S302 - our own
            at += LENGTH_BYTES + length


def paired(records: Iterable[T], others: Iterable[U]) -> Iterator[tuple[T, U | None]]:
    """Yield each record with the last other one of the same key; both must be sorted."""
    left = iter(others)
    other = next(left, None)
    for record in records:
        key, found = record[0], None
        while other is not None and other[0] <= key:
            found = other if other[0] == key else None
            other = next(left, None)
        yield record, found
