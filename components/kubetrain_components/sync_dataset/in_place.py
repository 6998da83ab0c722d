"""Data on a PVC that pods read where it is: nothing is copied, so its version is that of a listing."""

from pathlib import Path, PurePosixPath

from kubetrain_components.object_store.claim_uri import ClaimFolder
from kubetrain_components.object_store.store import StoredObject
from kubetrain_components.sync_dataset.plan import listing_lines, plan_sync
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_trainer.data.dataset_files import files_in, listing_path
from kubetrain_trainer.durable_files import write_all_atomically
from kubetrain_trainer.errors import InvalidSetting, KubetrainError


def list_in_place(uri: str, volume: Path, outputs: Path | None = None) -> SyncReport:
    """Return the version of the data on this volume, and keep its listing for the pods that use it.

    Raises:
        KubetrainError: if the data is missing, empty or changing, or is more than files and folders.
    """
    try:
        plan = plan_sync(uri, map(StoredObject._make, files_in(_folder(uri, volume))))
    except OSError as error:
        raise KubetrainError(
            f"{uri}: cannot read {error.filename} ({error.strerror}): if something changes the data, wait for its end; "
            "else set pods.user to the owner of the files"
        ) from error
    plan.check_keys()
    report = SyncReport.of_plan(plan)
    if outputs:
        listing = listing_path(outputs, plan.digest)
        listing.parent.mkdir(exist_ok=True)
        write_all_atomically(listing, listing_lines(plan.objects))
    return report


def _folder(uri: str, volume: Path) -> Path:
    """Return the folder that the URI names, not by a link: pods may not follow it."""
    named, folder = ClaimFolder.of(uri), volume
    for part in PurePosixPath(named.path).parts:
        if (folder := folder / part).is_symlink():
            raise InvalidSetting(f"{uri} goes through {part!r}, which is a link: name the folder that it stands for")
    if not folder.is_dir():
        raise InvalidSetting(f"data.uri: PVC {named.claim} has no folder {named.path!r}: correct the path")
    return folder
