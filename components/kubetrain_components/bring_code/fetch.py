"""Fetch an archive of code from S3, verify it, and unpack it.

python -m kubetrain_components.bring_code.fetch --uri s3://bucket/models --digest DIGEST --to /code
"""

import argparse
import gzip
import io
import sys
import tarfile
import zlib
from pathlib import Path

from kubetrain_components.bring_code.pack import MAX_ARCHIVE_BYTES, archive_key, digest_of
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import ObjectStore
from kubetrain_components.run.parameters import RunParameters
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.termination import report_failure


def check_code(parameters: RunParameters) -> None:
    """Check that pods will find the code that the run names, before anything is created.

    Raises:
        KubetrainError: if it is missing.
    """
    digest = parameters.train_config.code
    if digest and open_store(parameters.model_uri, parameters.s3_endpoint).find(archive_key(digest)) is None:
        raise KubetrainError(f"{parameters.model_uri} has no code {digest}: start the run again with --code")


def fetch_code(store: ObjectStore, digest: str, folder: Path) -> None:
    """
    Raises:
        KubetrainError: if the archive has other content than its name says, or cannot be unpacked within the folder.
    """
    unpack_code(store.read(archive_key(digest)).read(MAX_ARCHIVE_BYTES), digest, folder)


def unpack_code(content: bytes, digest: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        archive = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_ARCHIVE_BYTES)
        if digest_of(archive) != digest:
            raise KubetrainError(f"the archive of code {digest} has other content than its name says: bring it again")
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as unpacked:
            unpacked.extractall(folder, filter="data")  # refuses what would be written outside
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise KubetrainError(
            f"the archive of code {digest} cannot be unpacked: {error}; bring the code again"
        ) from error


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch an archive of code and unpack it.", allow_abbrev=False)
    for flag in ("--uri", "--endpoint", "--digest", "--to"):
        parser.add_argument(flag, required=flag != "--endpoint", default="")
    parsed = parser.parse_args()
    try:
        fetch_code(open_store(parsed.uri, parsed.endpoint), parsed.digest, Path(parsed.to))
    except KubetrainError as error:
        print(f"error: {error}", flush=True)
        report_failure(str(error), curable=True)
        return 1
    print(f"unpacked code {parsed.digest} into {parsed.to}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
