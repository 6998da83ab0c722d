"""Files and folders that are one on volumes that ignore case: two classes would silently become one.

Volumes differ in what they ignore: names that some volume may take for one are found here, and tried on the volume.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator

from kubetrain_components.sync_dataset.plan import SyncPlan
from kubetrain_trainer.errors import KubetrainError

IsOneFile = Callable[[str, str], bool]
"""Asks the volume whether two names in one folder are the same file."""


def check_case_conflicts(plan: SyncPlan, is_one_file: IsOneFile) -> None:
    """
    Raises:
        KubetrainError: if two files or folders would be one on the volume.
    """
    for folder, name, other in _similar_names(item.key for item in plan.objects):
        if is_one_file(name, other):
            raise KubetrainError(
                f"{folder + name!r} and {folder + other!r} under {plan.dataset_uri} are one file or folder on this "
                "volume, which ignores case: rename one, or sync to another volume"
            )


def _similar_names(keys: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the folder (with a slash) and both names, for names of the same folder."""
    seen: dict[tuple[str, str], list[str]] = {}
    last = ""
    for key in keys:
        for start, end in _parts(key, last):
            folder, name = key[:start], key[start:end]
            names = seen.setdefault((folder, _folded(name)), [])
            if name not in names:
                yield from ((folder, other, name) for other in names)
                names.append(name)
        last = key


def _parts(key: str, last: str) -> Iterator[tuple[int, int]]:
    """Yield where the names in a key start and end, without the folders that the key before has too."""
    folder = key.rpartition("/")[0]
    start = len(folder) + 1 if folder and last.startswith(f"{folder}/") else 0
    while start <= len(key):
        end = key.find("/", start)
        end = len(key) if end < 0 else end
        yield start, end
        start = end + 1


def _folded(name: str) -> str:
    """Return the same string for all names that some volume takes for one."""
    decomposed = unicodedata.normalize("NFKD", name).upper().casefold()
    visible = (item for item in decomposed if not unicodedata.category(item).startswith("C"))
    return unicodedata.normalize("NFKD", "".join(visible)).rstrip(". ")
