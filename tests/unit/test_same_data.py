import math
import re
from pathlib import Path
from typing import Any

import pytest

from kubetrain_trainer.data.image_folder import list_images
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.loop.same_everywhere import check_same_data, difference
from support.training import FakeGroup


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "n")


@pytest.mark.parametrize(
    ("values", "tolerance", "named"),
    [
        ([3, 3, 3], 0, ""),
        ([3, 3, 4, 3], 0, "4 in rank 2 on node n, and 3 in rank 0 on node n"),
        ([4, 3, 3, 3], 0, "4 in rank 0 on node n, and 3 in rank 1 on node n"),
        ([3, 4], 0, "4 in rank 1 on node n, and 3 in rank 0 on node n"),
        ([3, math.nan, 3], 0, ""),
        ([math.nan, math.nan], 0, ""),
        ([3, 3.2, 2.9, 3.8], 0.5, "3.8 in rank 3 on node n, and 3 in rank 0 on node n"),
    ],
)
def test_the_process_that_differs_from_most_is_named(values: list[float], tolerance: float, named: str) -> None:
    assert difference(values, Processes(len(values)), tolerance) == named


def test_only_processes_with_the_same_part_are_compared() -> None:
    assert difference([1, 2, 1, 2], Processes(4), stride=2) == ""
    assert difference([1, 2, 1, 3], Processes(4), stride=2).startswith("3 in rank 3 on node n, and 2 in rank 1")


class Processes(FakeGroup):
    """Processes on one node."""

    def __init__(self, count: int) -> None:
        super().__init__(0, list)
        self._count = count

    def gather_text(self, text: str) -> list[str]:
        return [text] * self._count


def beside(other: Any) -> FakeGroup:
    """Return the group of a process and of another one that sends these numbers."""
    return FakeGroup(0, lambda values: values if len(values) > 10 else [*values[:5], *other])


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ([4, 2], "number of training samples is 4 in rank 1"),
        ([3, 1], "number of validation samples is 1 in rank 1"),
        ([3, 2, math.nan, math.nan, 5.1], "mean of some training samples is 5.1 in rank 1"),
    ],
)
def test_other_samples_of_another_process_are_refused(other: list[float], what: str) -> None:
    rest = [math.nan] * (5 - len(other))
    with pytest.raises(KubetrainError, match=re.escape(what)):
        check_same_data(range(3), range(2), lambda indices: [5.0, 5.0], 0, beside([*other, *rest]))


@pytest.mark.parametrize("means", [[5.0, 5.0], [5.1, 5.2], [], [1 / 3, math.nan]])
def test_what_is_drawn_at_random_or_cannot_be_drawn_is_not_compared(means: list[float]) -> None:
    check_same_data(range(3), None, lambda indices: means, 0, beside([3, 9, math.nan, math.nan, 5.001]))


def test_the_checksum_of_images_is_the_same_wherever_they_are(tmp_path: Path) -> None:
    folders = [tmp_path / each / "train" / "cat" for each in ("here", "on-another-node")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "a.png").write_bytes(b"1")
    here, there = (list_images(each.parents[1], "train").files_checksum() for each in folders)
    assert here == there
    (folders[1] / "a.png").write_bytes(b"12")
    assert list_images(folders[1].parents[1], "train").files_checksum() != here
    (folders[1] / "a.png").rename(folders[1] / "b.png")
    (folders[1] / "b.png").write_bytes(b"1")
    assert list_images(folders[1].parents[1], "train").files_checksum() != here
