"""Training images that cannot be read, and that others take the place of, up to the number that skip_damaged allows."""

from multiprocessing import get_context
from typing import Any

from kubetrain_trainer.data.given_images import GivenImages
from kubetrain_trainer.errors import KubetrainError

NONE = -1


class DamagedImage(KubetrainError):
    """An image cannot be read."""


def damaged_image(images: Any, index: int) -> DamagedImage:
    """Return the error, which names the source of a dataset: the next sync would undo what is done to its copy."""
    where = "" if isinstance(images, GivenImages) else " where the dataset comes from"
    return DamagedImage(f"{images.name(index)} is not an image that can be read: replace or remove it{where}")


class LeftOut:
    """Remembers what a training process leaves out. Its loading processes share it, so that each image counts once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._indices: Any = get_context("forkserver").Array("q", [NONE] * most) if most else None

    def add(self, index: int, damage: DamagedImage) -> None:
        """
        Raises:
            DamagedImage: if no more may be left out.
        """
        if not self._most:
            raise DamagedImage(f"{damage}, or set train.skip_damaged") from damage
        with self._indices.get_lock():
            known = self._known()
            if index in known:
                return
            if len(known) == self._most:
                raise DamagedImage(f"{damage}, or raise train.skip_damaged ({self._most})") from damage
            self._indices[len(known)] = index
            print(f"{damage}. It is left out, {len(known) + 1} of {self._most} (train.skip_damaged)", flush=True)

    def stand_in(self, index: int, count: int) -> int:
        """Return the next of `count` images that is not left out; the image itself if it is not.

        Raises:
            KubetrainError: if all are.
        """
        known = self._known() if self._most else []
        places = ((index + step) % count for step in range(count))
        found = next((place for place in places if place not in known), None)
        if found is None:
            raise KubetrainError(f"none of the {count} training images can be read: check the format of the files")
        return found

    def _known(self) -> list[int]:
        return [index for index in self._indices[:] if index != NONE]
