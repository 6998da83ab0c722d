"""`--code DIR`: bring a folder of your code to the processes of a run, in S3 or on this machine."""

import functools
import posixpath
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kubetrain_components.bring_code.fetch import unpack_code
from kubetrain_components.bring_code.function_script import SCRIPT, script_text
from kubetrain_components.bring_code.pack import PackedCode, pack_code, upload_code, with_script
from kubetrain_components.object_store.open_store import names_directory, open_store
from kubetrain_components.run.request import Request, merged
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_pipelines.requests.say import Say, print_line
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.own_code.check_model import check_writes_model, texts_here
from kubetrain_trainer.own_code.check_script import check_scripts_here, script_of, scripts_of
from kubetrain_trainer.processes.code_folder import VARIABLE
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.entry import parse_entry
from kubetrain_trainer.settings.model_names import is_import_path
from kubetrain_trainer.versions import COMMIT_VARIABLE


def pack(asked: AskedRun, without: Path | None = None, say: Say = print_line) -> PackedCode | None:
    """Pack the folder of code, except for the run's own files, and the script of a function, and say what it has."""
    code = pack_code(asked.code, without) if asked.code else None
    entry = (asked.settings or {}).get("train", {}).get("entry")
    if callable(entry):
        code = with_script(code, SCRIPT, script_text(functools.partial(entry)))
    if code is None:
        return None
    files = "1 file" if len(code.files) == 1 else f"{len(code.files)} files"
    say(f"code {code.digest}: {files} of {asked.code or 'a function'}, {len(code.content) / 1024:.0f} KiB")
    return code


def with_code(asked: RequestFile, code: PackedCode | None) -> RequestFile:
    """Return the request, whose pods fetch the code."""
    return replace(asked, request=merged(asked.request, {"train": {"code": code.digest}})) if code else asked


def upload(code: PackedCode | None, request: Request) -> None:
    """Upload the archive beside the models of the run.

    Raises:
        InvalidSetting: if the run keeps its models where pods could not fetch the code.
    """
    if code is None:
        return
    upload_to(code, request.get("model", {}).get("uri", ""), request.get("data", {}).get("endpoint", ""))


def upload_to(code: PackedCode, model_uri: str, s3_endpoint: str) -> None:
    check_store(model_uri)
    upload_code(code, open_store(model_uri, s3_endpoint))


def check_store(model_uri: str) -> None:
    """
    Raises:
        InvalidSetting: if pods could not fetch code from there.
    """
    if not model_uri or names_directory(model_uri):
        raise InvalidSetting(f"--code needs a model.uri in S3, from which pods can fetch the code, not '{model_uri}'")


def check_scripts(code: PackedCode | None, config: TrainConfig) -> list[str]:
    """Return a warning if nothing says that the code writes a model where kubetrain looks for it.

    Raises:
        InvalidSetting: if the code lacks a script that the entry names, or can write no model.
    """
    if code is None:
        return []
    for script in _relative_scripts(config.entry):
        if script not in code.files:
            raise InvalidSetting(
                f"train.entry: --code brings no script '{script}': {did_you_mean(script, code.files)} "
                "(in a repository, only files that git tracks are brought)"
            )
    entry, texts = parse_entry(config.entry), code.python_files()
    return check_writes_model(config, texts) if entry and posixpath.normpath(script_of(entry)) in texts else []


def _relative_scripts(entry: Mapping[str, Any]) -> list[str]:
    parsed = parse_entry(entry)
    named = [posixpath.normpath(script) for script in scripts_of(parsed)] if parsed else []
    return [script for script in named if not script.startswith(("/", "../"))]


def needed_in_image(code: PackedCode | None, config: TrainConfig) -> list[str]:
    """Return the scripts and packages of your own that the code does not bring, so that the image must have them."""
    if config.entry:
        return [] if code else _relative_scripts(config.entry)
    package = config.model.partition(":")[0].partition(".")[0]
    if not is_import_path(config.model) or any(_is_of(package, file) for file in (code.files if code else ())):
        return []
    return [package]


def _is_of(package: str, file: str) -> bool:
    return file == f"{package}.py" or file.startswith(f"{package}/")


def check_is_here(code: PackedCode | None, config: TrainConfig) -> list[str]:
    """Return what check_scripts() says, also of a script on this machine.

    Raises:
        InvalidSetting: if the settings name code that only pods would fetch, or if the script cannot start.
    """
    if config.code and not code:
        raise InvalidSetting("train.code is set, which this machine does not fetch: name the folder with --code")
    entry = parse_entry(config.entry)
    if code or not entry:
        return check_scripts(code, config)
    check_scripts_here(entry, config.requirements)
    return check_writes_model(config, texts_here(entry))


def unpack_here(code: PackedCode | None, folder: Path) -> dict[str, str]:
    """Unpack the archive on this machine, and return the environment of the processes that use it."""
    if code is None:
        return {}
    unpacked = folder.absolute() / code.digest
    if unpacked.exists():
        shutil.rmtree(unpacked)  # a script of an earlier run may have changed it
    unpack_code(code.content, code.digest, unpacked)
    commit = {COMMIT_VARIABLE: code.commit} if code.commit else {}
    return {VARIABLE: str(unpacked), **commit}


@contextmanager
def unpacked_apart(code: PackedCode | None, folder: Path) -> Iterator[dict[str, str]]:
    """Like `unpack_here`, into a new folder that is deleted on exit: other runs may be using theirs."""
    if code is None:
        yield {}
        return
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as own:
        yield unpack_here(code, Path(own))
