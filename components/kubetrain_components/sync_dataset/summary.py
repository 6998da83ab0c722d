"""The Markdown summary of a dataset on the run's page: source, version, how it was verified and how pods read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubetrain_components.object_store.claim_uri import SCHEME
from kubetrain_components.object_store.open_store import without_secrets
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.markdown import escaped, table
from kubetrain_components.shown_values import describe_seconds


def dataset_summary(report: Mapping[str, Any], place: DatasetPlace, data_dir: Path) -> str:
    """
    Args:
        report: Report of the sync.
        data_dir: Path of the version in training pods.
    """
    if not place.digest:
        return "# No dataset\n\ndata.uri is empty: your script brings its own data.\n"
    in_place = report["source"].startswith(SCHEME)
    objects, downloaded, by_size = (report[name] for name in ("objects", "downloaded", "unverified"))
    facts = {
        "source": f"`{escaped(without_secrets(report['source']))}`",
        "version": f"`{place.digest}`{', a digest of names, sizes and times' if in_place else ''}",
        "objects": f"{objects:,}, {report['bytes']:,} bytes",
    }
    copied = {
        "downloaded": f"{downloaded:,} in {describe_seconds(report['seconds'])}, {report['downloaded_bytes']:,} bytes",
        "verified by checksum": f"{downloaded - by_size:,}",
        "verified by size only": f"{by_size:,}, because the store has no usable checksums for them" if by_size else "0",
        "verified by earlier syncs": f"{objects - downloaded:,}",
    }
    facts |= {**({} if in_place else copied), "training reads": _mount(place, data_dir)}
    return f"# Dataset {place.digest}\n\n{table(facts)}"


def _mount(place: DatasetPlace, data_dir: Path) -> str:
    folder = f"folder `{place.sub_path}` of " if place.sub_path else ""
    volume = f", read-only, from {folder}PVC `{place.claim}`" if place.claim else ""
    return f"`{data_dir}`{volume}{'; shards are read from the store, through a cache' if place.shards else ''}"
