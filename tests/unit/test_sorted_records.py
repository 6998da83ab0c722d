"""Records that are sorted in bounded memory, and joined by their keys."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset import sorted_records
from kubetrain_components.sync_dataset.sorted_records import Sorted, paired

KEYS = st.text("ab/\udc80ü", max_size=3)
RECORDS = st.lists(st.builds(StoredObject, KEYS, st.integers(0, 2**63), st.text(max_size=3)), max_size=30)


def make(records: list[StoredObject], one_by_one: bool = False) -> Sorted[StoredObject]:
    made = Sorted(StoredObject._make)
    if one_by_one:
        for each in records:
            made.add(each)
    else:
        made.extend(records)
    return made


@settings(max_examples=40, deadline=None)
@given(RECORDS, st.integers(1, 12), st.booleans())
def test_records_come_sorted_wherever_they_are_kept(records: list[StoredObject], limit: int, one_by_one: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_records, "MAX_IN_MEMORY", limit)
        patch.setattr(sorted_records, "BATCH", 2)
        patch.setattr(sorted_records, "MAX_FILES", 3)
        made = make(records, one_by_one)
        expected = sorted(records, key=lambda each: each.key)
        assert list(made) == expected, "records of one key keep their order"
        assert list(made) == expected, "they can be read again"
        assert len(made) == len(records)
        assert len(made._files) <= 3, "open files are few"
        assert all(type(each) is StoredObject for each in made)


def test_records_can_be_added_after_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_records, "MAX_IN_MEMORY", 2)
    made = Sorted[tuple[str]](tuple)
    for key in "cab":
        made.add((key,))
        list(made)
    assert [key for (key,) in made] == ["a", "b", "c"]


def test_two_readers_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_records, "MAX_IN_MEMORY", 10)
    monkeypatch.setattr(sorted_records, "BATCH", 3)
    made = make([StoredObject(f"{number:02}", number, "") for number in range(50)])
    assert [one.size + other.size for one, other in zip(made, made, strict=True)] == [2 * each for each in range(50)]


def test_temporary_files_have_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_records, "MAX_IN_MEMORY", 1)
    made = Sorted[tuple[str]](tuple, tmp_path)
    made.extend([("a",), ("b",)])
    assert list(tmp_path.iterdir()) == [], "a sync that is killed leaves nothing"


def test_memory_does_not_grow_with_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_records, "MAX_IN_MEMORY", 1000)
    monkeypatch.setattr(sorted_records, "MAX_FILES", 4)
    monkeypatch.setattr(sorted_records, "BATCH", 50)

    def peak(number: int) -> int:
        def records() -> Iterator[StoredObject]:
            return (StoredObject(f"{each:090}", each, "x" * 32) for each in range(number))

        made = Sorted(StoredObject._make, tmp_path)
        tracemalloc.start()
        made.extend(records())
        assert sum(1 for _ in made) == number
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(10_000) < 2 * peak(2_500)


def test_records_are_paired_with_the_last_other_of_their_key() -> None:
    others = [("a", 0), ("b", 1), ("b", 2), ("d", 3), ("f", 4)]
    pairs = [(each[0], found and found[1]) for each, found in paired([("b",), ("c",), ("d",), ("g",)], others)]
    assert pairs == [("b", 2), ("c", None), ("d", 3), ("g", None)]
