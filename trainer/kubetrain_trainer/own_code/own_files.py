"""The files that a script of your own writes: those that become its model, and those that it leaves elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.code_folder import VARIABLE
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig

WORK, LEFT_BEHIND = "work", "left_behind"
OF_OUTPUT = (WORK, LEFT_BEHIND, "export", "checkpoints", "tensorboard", "config.json", "metrics.jsonl", "metrics.json")
INSTALLED = ("venv", "node_modules", "site-packages", "dist-packages", "__pycache__")
MAX_KEPT_BYTES = 2 << 30
MAX_NAMED = 5


def working_folder(output: TrainingOutput, role: ProcessRole, outputs: Sequence[str]) -> Path:
    """Make a folder that the processes of this pod may write to, with what the script finds beside it.

    It lies on the shared storage, so that a pod that starts again finds what the script saved there.
    """
    folder = output.path / WORK / str(role.rank - role.local_rank)
    partial = folder.with_name(f".{folder.name}-{role.rank}-{time.time_ns()}")
    if not folder.exists():
        _fill(partial, Path.cwd(), {output.path.resolve(), *output.path.resolve().parents}, outputs)
        try:
            partial.rename(folder)
        except OSError:  # another process of this pod was faster
            shutil.rmtree(partial)
    return folder


def _fill(folder: Path, beside: Path, around: Collection[Path], outputs: Sequence[str]) -> None:
    """Copy the folder of --code; link what is in another one, of any size, but for what the script is to write."""
    if VARIABLE in os.environ:
        shutil.copytree(beside, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".kubetrain").touch()  # a rename would replace a folder without files
    written = [part for part in (PurePosixPath(pattern).parts[0] for pattern in outputs) if part.strip("*?")]
    for path in beside.iterdir() if VARIABLE not in os.environ else ():
        if path not in around and not any(fnmatch(path.name, part) for part in written):
            (folder / path.name).symlink_to(path)


def collect_model(output: TrainingOutput, folder: Path, config: TrainConfig, since: int) -> None:
    """Put the files that train.outputs names into the export, if they were written since then.

    Raises:
        KubetrainError: if there is no model.
    """
    found = [path for pattern in config.outputs for path in folder.glob(str(PurePosixPath(pattern)))]
    for path in {path for each in found for path in (each, *each.rglob("*"))}:
        written, target = path.resolve(), output.export / path.relative_to(folder)
        is_own = folder.resolve() in written.parents and "__pycache__" not in written.parts and written.is_file()
        if is_own and written.stat().st_ctime_ns >= since:  # copies and downloads may keep an older st_mtime
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(written, target)  # which takes no second space
            except OSError:
                shutil.copyfile(written, target)
    if config.publishes and not any(path.is_file() for path in output.export.rglob("*")):
        raise _no_model_error(output, folder, config.outputs, since)


def _no_model_error(output: TrainingOutput, folder: Path, outputs: Sequence[str], since: int) -> KubetrainError:
    """Return the error, which names what the script wrote elsewhere. Keep what would be lost with the pod."""
    own = {output.path.resolve(), *output.path.resolve().parents} - {folder, *folder.parents}
    here = _newest(folder, own, since)
    there = _newest(output.path, {output.path / name for name in OF_OUTPUT}, since)
    wrote = [*_named(here, folder), *_named(there, output.path, "$KUBETRAIN_OUTPUT/")][:MAX_NAMED]
    missed = f", and nothing new for train.outputs={json.dumps(outputs)}" if outputs else ""
    kept = _keep(here, folder, output.path / LEFT_BEHIND) if here and not outputs else ""
    names = (path.relative_to(folder).parts for path in here[:MAX_NAMED])
    proposed = [*dict.fromkeys(parts[0] + "/" * (len(parts) > 1) for parts in names)]
    remedy = f"set train.outputs={json.dumps(proposed)}, or " if proposed else ""
    return KubetrainError(
        f"there is no model in {output.export}{missed}: the script wrote {', '.join(wrote) or 'no file'}{kept}; "
        f"{remedy}write the model into $KUBETRAIN_OUTPUT/export, or set train.publishes=false if the run needs none"
    )


def _named(paths: Sequence[Path], folder: Path, prefix: str = "") -> list[str]:
    return [f"{prefix}{path.relative_to(folder)} ({path.stat().st_size / 1e6:.1f} MB)" for path in paths]


def _newest(folder: Path, skipped: Collection[Path], since: int) -> list[Path]:
    times = {path: path.stat().st_mtime_ns for path in files_under(folder, skipped)}
    return sorted((path for path in times if times[path] >= since), key=lambda path: -times[path])


def files_under(folder: Path, skipped: Collection[Path] = ()) -> Iterator[Path]:
    """Yield the files of a folder, without links, hidden files, installed packages, other volumes and these paths."""
    device = folder.stat().st_dev

    def is_own(path: Path) -> bool:
        is_hidden = path.name.startswith(".") or path.name in INSTALLED
        return not is_hidden and path not in skipped and not path.is_symlink() and path.exists()

    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = [name for name in folders if is_own(here / name) and (here / name).stat().st_dev == device]
        yield from filter(is_own, map(here.joinpath, names))


def _keep(paths: Sequence[Path], folder: Path, kept: Path) -> str:
    """Copy the newest files, and say where they are."""
    left = MAX_KEPT_BYTES
    for path in paths:
        if (size := path.stat().st_size) <= left:
            left -= size
            (kept / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, kept / path.relative_to(folder))
    return f", kept in {kept}"
