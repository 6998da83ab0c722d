"""Batches that a thread copies to the device, here the CPU."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from kubetrain_trainer.pytorch_ddp.device_batches import copied, prefetched

META = torch.device("meta")
NUMBERS = torch.arange(8.0)


class Moving:
    """An object that moves itself."""

    def to(self, device: torch.device) -> None:
        raise AssertionError("it is not moved ahead")


def copy_all(*batches: Any) -> list[Any]:
    ahead = prefetched(enumerate(batches), META)
    return [(number, copied(copying, META)) for number, copying in ahead]


def test_batches_come_in_their_order_and_on_the_device() -> None:
    found = copy_all(NUMBERS[:3], {"ids": NUMBERS}, (NUMBERS, [NUMBERS, "a word"]))
    assert [number for number, _ in found] == [0, 1, 2]
    assert found[0][1].shape == (3,)
    assert found[0][1].device == found[1][1]["ids"].device == found[2][1][1][0].device == META
    assert found[2][1][1][1] == "a word"
    assert copy_all() == []


def test_what_only_moves_itself_is_left_where_it_is() -> None:
    packed, sparse, moving = pack_sequence([NUMBERS]), torch.eye(3).to_sparse(), Moving()
    [(_, found)] = copy_all((packed, sparse, moving, NUMBERS))
    assert found[:3] == (packed, sparse, moving)
    assert isinstance(found[0], PackedSequence)
    assert found[3].device == META


def test_one_batch_is_copied_while_another_is_used() -> None:
    asked = []

    def batches() -> Iterator[tuple[int, Any]]:
        for number in range(4):
            asked.append(number)
            yield number, NUMBERS

    for number, _ in prefetched(batches(), META):
        assert asked == [*range(min(number + 2, 4))]


def test_an_error_in_the_thread_is_that_of_its_batch() -> None:
    class Broken(dict[str, Any]):
        def __setitem__(self, name: str, value: Any) -> None:
            raise ValueError("this batch is broken")

    ahead = prefetched([(0, NUMBERS), (1, Broken(ids=NUMBERS))], META)
    assert copied(next(ahead)[1], META).device == META
    with pytest.raises(ValueError, match="this batch is broken"):
        copied(next(ahead)[1], META)


def test_its_thread_ends_with_it() -> None:
    before = threading.active_count()
    ahead = prefetched([(0, NUMBERS), (1, NUMBERS), (2, NUMBERS)], META)
    next(ahead)
    assert threading.active_count() == before + 1
    ahead.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
