"""`--code DIR`: bring a folder of your code to the processes of a run, in S3 or on this machine."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubetrain_components.bring_code.fetch import unpack_code
from kubetrain_components.bring_code.pack import PackedCode, pack_code, upload_code
from kubetrain_components.object_store.open_store import names_directory, open_store
from kubetrain_pipelines.pipeline_parameters import Parameter
from kubetrain_trainer.code_folder import VARIABLE
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.versions import COMMIT_VARIABLE


def pack(folder: Path | None, without: Path | None = None) -> PackedCode | None:
    """Pack the folder, except for the run's own files, and say what it has."""
    if folder is None:
        return None
    code = pack_code(folder, without)
    print(f"code {code.digest}: {code.files} files of {folder}, {len(code.content) / 1024:.0f} KiB", flush=True)
    return code


def as_pairs(code: PackedCode | None) -> tuple[str, ...]:
    """Return the code as `--set` would set it."""
    return (f"code={code.digest}",) if code else ()


def upload(code: PackedCode | None, declared: Sequence[Parameter], given: Mapping[str, Any]) -> None:
    """Upload the archive beside the models of the run.

    Raises:
        InvalidSetting: if the run keeps its models where pods could not fetch the code.
    """
    if code is None:
        return
    values = {each.name: given.get(each.name, each.default) for each in declared}
    uri = str(values.get("model_uri", ""))
    if names_directory(uri):
        raise InvalidSetting(f"--code needs a model_uri in S3, from which pods can fetch the code, not '{uri}'")
    upload_code(code, open_store(uri, str(values.get("s3_endpoint", ""))))


def check_is_here(code: PackedCode | None, train_config: Mapping[str, Any]) -> None:
    """
    Raises:
        InvalidSetting: if the settings name code that only pods on a cluster would fetch.
    """
    if train_config.get("code") and code is None:
        raise InvalidSetting("code is set, which this machine does not fetch: name the folder with --code")


def use_here(code: PackedCode | None, folder: Path) -> None:
    """Unpack the archive on this machine, for the processes that this one starts."""
    if code is None:
        return
    unpacked = folder.absolute() / code.digest
    if unpacked.exists():
        shutil.rmtree(unpacked)  # a script of an earlier run may have changed it
    unpack_code(code.content, code.digest, unpacked)
    paths = [str(unpacked), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    commit = {COMMIT_VARIABLE: code.commit} if code.commit else {}
    os.environ.update({VARIABLE: str(unpacked), "PYTHONPATH": os.pathsep.join(paths), **commit})
