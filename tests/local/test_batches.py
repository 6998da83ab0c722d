"""Batches of any structure keep it on the way to the model, and samples can be sent to the processes that load them."""

import threading
from collections import OrderedDict, UserDict
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.pytorch_ddp.sendable import check_sendable
from kubetrain_trainer.pytorch_ddp.structures import map_tensors, split, to_device
from support.free_tasks import Words

NUMBERS = torch.arange(8.0)
CPU = torch.device("cpu")


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Frozen:
    numbers: Any
    name: str = "a name"
    nothing: None = None


class Library(OrderedDict[str, Any]):
    """Like the outputs of transformers: a dict, whose items are attributes too."""

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        object.__setattr__(self, name, value)


class Encoding(UserDict[str, Any]):
    """Like the BatchEncoding of transformers: it moves itself."""

    moved = False

    def to(self, device: torch.device) -> "Encoding":
        self.moved = True
        return self


STRUCTURES = [
    Pair(NUMBERS, [NUMBERS]),
    Frozen(NUMBERS),
    Library(logits=NUMBERS, more=(NUMBERS,)),
    Encoding(ids=NUMBERS),
    {"ids": (NUMBERS, NUMBERS)},
    [NUMBERS, NUMBERS],
    (NUMBERS, ["a"] * 8),
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: type(structure).__name__)
def test_a_structure_is_kept_when_its_tensors_change_or_are_split(structure: Any) -> None:
    before = str(structure)
    doubled = map_tensors(lambda tensor: 2 * tensor, structure)
    halves = split(structure, 2, samples=8)
    assert {type(structure)} == {type(each) for each in (doubled, *halves)}
    assert torch.equal(tensors_in(doubled)[0], 2 * NUMBERS)
    assert [tensors_in(half)[0].tolist() for half in halves] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert str(structure) == before
    assert map_tensors(lambda tensor: tensor, structure) is structure


def tensors_in(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, value)  # type: ignore[func-returns-value]
    return found


def test_attributes_of_a_librarys_output_change_too() -> None:
    output = map_tensors(lambda tensor: tensor.double(), Library(logits=NUMBERS))
    assert output.logits is output["logits"]
    assert output.logits.dtype == torch.float64


def test_the_outputs_of_transformers_are_kept() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    transformers = pytest.importorskip("transformers")
    output = outputs.SequenceClassifierOutput(logits=NUMBERS.bfloat16())
    in_fp32 = map_tensors(lambda tensor: tensor.float(), output)
    assert type(in_fp32) is type(output)
    assert (in_fp32.logits.dtype, in_fp32.loss) == (torch.float32, None)
    halves = split(transformers.BatchEncoding({"input_ids": NUMBERS}), 2, samples=8)
    assert [half.input_ids.tolist() for half in halves] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_can_move_itself_does() -> None:
    inner = Encoding(ids=NUMBERS)
    assert to_device([inner, NUMBERS], CPU)[0].moved
    meta = to_device({"ids": Frozen(NUMBERS)}, torch.device("meta"))
    assert meta["ids"].numbers.device.type == "meta"


def test_a_list_with_one_tensor_for_each_sample_is_split_between_them() -> None:
    images = [torch.zeros(3, size, size) for size in range(1, 9)]
    boxes = tuple({"boxes": torch.zeros(size, 4)} for size in range(1, 9))
    (first, targets), (last, _) = split((images, boxes), 2, samples=8)
    assert [image.shape[1] for image in (*first, *last)] == [*range(1, 9)]
    assert [len(each["boxes"]) for each in targets] == [1, 2, 3, 4]


@pytest.mark.parametrize("part", [torch.zeros(5), torch.zeros(3, 8), object()])
def test_what_does_not_belong_to_single_samples_is_not_split(part: Any) -> None:
    with pytest.raises(KubetrainError, match="gradient_accumulation cannot split a"):
        split([NUMBERS, {"part": part}], 2, samples=8)


class Samples:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


class Unread(torch.Tensor):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("its content was copied")


def top_level(value: Any) -> Any:
    return value


def test_samples_of_functions_classes_numbers_and_shared_memory_can_be_sent() -> None:
    shared = RawArray("i", 3)
    samples = Samples(transform=top_level, kind=Words, paths=["a"] * 10, images=Unread(), names={"a": 1}, shared=shared)
    samples.itself = samples  # type: ignore[attr-defined]
    check_sendable("samples", samples)


@pytest.mark.parametrize(
    ("samples", "place"),
    [
        (Samples(transform=lambda value: value), r"samples\.transform \(<lambda>\)"),
        (Samples(steps=[top_level, Samples(last=lambda value: value)]), r"samples\.steps\[1\]\.last \(<lambda>\)"),
        (Samples(files={"a": (value for value in ())}), r"samples\.files\['a'\] \(<genexpr>\)"),
        (Samples(lock=threading.Lock()), r"samples\.lock \(a lock\)"),
        (Samples(shared=RawArray("i", 3), last=lambda value: value), r"samples\.last \(<lambda>\)"),
        (lambda value: value, r"samples \(<lambda>\)"),
    ],
)
def test_the_object_that_cannot_be_sent_is_named(samples: Any, place: str) -> None:
    with pytest.raises(KubetrainError, match=rf"^{place} cannot be sent to the processes .* train\.loader_workers=0"):
        check_sendable("samples", samples)
