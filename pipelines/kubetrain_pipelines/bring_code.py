"""`--code DIR`: bring a folder of your code to the processes of a run, in S3 or on this machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubetrain_components.bring_code.fetch import unpack_code
from kubetrain_components.bring_code.pack import PackedCode, pack_code, upload_code
from kubetrain_components.object_store.open_store import open_store
from kubetrain_trainer.own_code import CODE_VARIABLE


def pack(folder: Path | None) -> PackedCode | None:
    """Pack the folder, and say what it has."""
    if folder is None:
        return None
    code = pack_code(folder)
    print(f"code {code.digest}: {code.files} files of {folder}, {len(code.content) / 1024:.0f} KiB", flush=True)
    return code


def as_pairs(code: PackedCode | None) -> tuple[str, ...]:
    """Return the code as `--set` would set it."""
    return (f"code={code.digest}",) if code else ()


def upload(code: PackedCode | None, parameters: Mapping[str, Any]) -> None:
    """Upload the archive beside the models of the run."""
    if code:
        upload_code(code, open_store(parameters["model_uri"], parameters.get("s3_endpoint", "")))


def use_here(code: PackedCode | None, folder: Path) -> None:
    """Unpack the archive on this machine, for the processes that this one starts."""
    if code is None:
        return
    unpacked = folder.absolute() / code.digest
    unpack_code(code.content, code.digest, unpacked)
    paths = [str(unpacked), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    os.environ.update({CODE_VARIABLE: str(unpacked), "PYTHONPATH": os.pathsep.join(paths)})
