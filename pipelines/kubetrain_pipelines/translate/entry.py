"""The program of a hand-written job as train.entry: a script in each process, or a command in each pod."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from kubetrain_components.secret_values import has_secret
from kubetrain_pipelines.translate.commands import (
    NOT_SHOWN,
    command_of,
    in_folder,
    name_command,
    take_folder,
    unescaped,
)
from kubetrain_pipelines.translate.containers import SET_BY_LAUNCHER
from kubetrain_pipelines.translate.draft import Draft
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.reasons import like_settings
from kubetrain_pipelines.translate.torchrun import Torchrun, script_in

REFERENCE = re.compile(rf"(?<!\$)(?:\$\$)*\$\(({SET_BY_LAUNCHER.pattern})\)")
"""Variables in commands that have another meaning, or none, in the pods of a run."""
SET_BY_KUBETRAIN = re.compile(r"nnodes|nproc-.*|max-restarts|node-rank|master-.*|rdzv-(?!conf).*|use-env")
"""Options of torchrun that kubetrain has as settings, or sets itself."""
LEGACY = "torch.distributed.launch"

CONTRACT = (
    "your program must read its data from $KUBETRAIN_DATA (/data) and write its model into $KUBETRAIN_OUTPUT/export, "
    "if train.outputs does not name it; $KUBETRAIN_RESUME_FROM is the checkpoint to resume from: see docs/own_code.md"
)
FOLDER = "the script starts in the WORKDIR of the image, not in {folder}: relative paths count from there"
OTHER_OPTIONS = "torchrun runs without your options {names}"
OTHER_NODES = (
    "torchrun runs without your --nnodes={nodes}: each of the {workers} workers is a node, so set pods.workers"
)
LOCAL_RANK = f"{LEGACY} passes --local-rank to the script, but torchrun does not: let the script read LOCAL_RANK"
NO_COMMAND = "the manifest has no command: set train.entry to the script or command that the image starts"
OWN_TRAINER = (
    "without train.entry, the run uses kubetrain's own trainer: set model.name and remove pods.image, see "
    "docs/models.md"
)
LIKE_SETTINGS = "{trainer}; settings that your arguments may stand for: {names}"

UNKNOWN = {"script": "<SCRIPT>"}
"""Stands for what the user has to fill in: otherwise kubetrain's own trainer would run instead."""
NOT_TAKEN = "{why}; then set train.entry, see docs/own_code.md"
OF_IMAGE = "the beginning of the command is in the image: put it before these arguments"
SEVERAL = "the roles run different programs, but all pods are alike: let one program find its role by its rank"
REFERS = "$({name}) is set otherwise in the processes of a run: let the program read the variable"
ELASTIC = "elastic pods run a script, but no command: start the program from a script, or remove pods.min_workers"


def take_entry(draft: Draft, torchrun: Torchrun, *containers: Fields, has_launcher: bool = False) -> None:
    """Take the program of the pods, or name it if it cannot be the entry.

    Args:
        has_launcher: True if an image without a command runs torchrun.
    """
    has_command = any(container.get("command", list) for container in containers)
    words = [*(["torchrun"] if has_launcher and not has_command else []), *command_of(*containers)]
    script = script_in(words)
    if not command_of(*containers):
        draft.note(NO_COMMAND)
        draft.set("train_config", {"entry": UNKNOWN})
    elif why := _obstacle(draft, words, script) if script or has_command else OF_IMAGE:
        name_command(draft, NOT_TAKEN.format(why=why), *containers)
        draft.set("train_config", {"entry": UNKNOWN})
    else:
        _set_entry(draft, words, script, take_folder(*containers), torchrun)
        for item in containers:
            item.drop("command", "args")
    _note_own_trainer(draft, words)


def _obstacle(draft: Draft, words: Sequence[str], script: Sequence[str]) -> str:
    """Return why the program cannot be the entry, with the remedy; empty if it can."""
    if not draft.has_one_program:
        return SEVERAL
    if has_secret(words):
        return NOT_SHOWN
    if found := REFERENCE.search(" ".join(script or words)):
        return REFERS.format(name=found[1])
    return ELASTIC if draft.settings.get("min_workers") and not script else ""


def _set_entry(draft: Draft, words: Sequence[str], script: Sequence[str], folder: str, torchrun: Torchrun) -> None:
    if script:
        entry: dict[str, Any] = {"script": str(PurePosixPath(folder, script[0])), "args": unescaped(script[1:])}
        _note_script(draft, words, folder, torchrun)
    else:
        entry = {"command": in_folder(folder, unescaped(words))}
    draft.set("train_config", {"entry": {name: value for name, value in entry.items() if value}})
    draft.note(CONTRACT)


def _note_script(draft: Draft, words: Sequence[str], folder: str, torchrun: Torchrun) -> None:
    if folder:
        draft.note(FOLDER.format(folder=folder))
    if others := [f"--{name}" for name in torchrun.options if not SET_BY_KUBETRAIN.fullmatch(name)]:
        draft.note(OTHER_OPTIONS.format(names=", ".join(others)))
    workers, nodes = draft.settings["workers"], torchrun.fixed_nodes
    if nodes and nodes != workers:
        draft.note(OTHER_NODES.format(nodes=nodes, workers=workers))
    if LEGACY in " ".join(words) and "use-env" not in torchrun.options:
        draft.note(LOCAL_RANK)


def _note_own_trainer(draft: Draft, command: Sequence[str]) -> None:
    names = ", ".join(like_settings(command))
    draft.note(LIKE_SETTINGS.format(trainer=OWN_TRAINER, names=names) if names else OWN_TRAINER)
