"""The verification of a published version, in bounded memory."""

from collections.abc import Iterator

from kubetrain_components.sync_dataset.manifest import MANIFEST
from kubetrain_components.sync_dataset.publish import DamagedManifest, DatasetVersion
from kubetrain_components.sync_dataset.sorted_records import Sorted, paired
from kubetrain_trainer.data.dataset_files import entries_in
from kubetrain_trainer.failures import describe_os_error


def verify_version(version: DatasetVersion) -> list[str]:
    """Re-hash every file and return a sentence for each problem."""
    try:
        version.check_manifest()
    except DamagedManifest as error:
        return [str(error)]
    wrong = [problem for entry in version.entries() if (problem := entry.problem_in(version.data))]
    return wrong + _added_or_error(version)


def _added_or_error(version: DatasetVersion) -> list[str]:
    """Return a folder that cannot be read as a problem, so that those of the files are not lost."""
    try:
        return [f"{key} is not in {MANIFEST}" for key in _added_files(version)]
    except OSError as error:
        return [f"cannot read {error.filename} {describe_os_error(error)}"]


def _added_files(version: DatasetVersion) -> Iterator[str]:
    files = Sorted[tuple[str]](tuple)
    files.extend((key,) for key, _ in entries_in(version.data))
    return (key for (key,), entry in paired(files, (entry.object for entry in version.entries())) if entry is None)
