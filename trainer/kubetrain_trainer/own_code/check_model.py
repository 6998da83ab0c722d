"""Finds out without running it whether a script of your own can write a model where kubetrain looks for it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path, PurePosixPath

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.own_code.check_script import script_of
from kubetrain_trainer.own_code.own_files import files_under
from kubetrain_trainer.processes.code_folder import VARIABLE
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.entry import Entry, parse_entry

PLACES = re.compile(r"KUBETRAIN_OUTPUT|session\.finish|\bimport\b.*\bfinish\b|/export\b")
SAVES = re.compile(r"[\w.]*(?:save|dump|export|copyfile|write_bytes|upload|push_to)\w*(?=\()")
WRITES = re.compile(
    r"save|dump|export|write|copy(?!right)|upload|push|checkpoint|open|exec|system|subproc|__import|Trainer", re.I
)
"""What is in the name of anything that writes, or that starts what is not known."""
IMPORTS = re.compile(r"\bfrom\s+([\w.]+)\s+import\b|\bimport\s+(\w[\w., ]*)")
LIBRARIES = {"torch", "torchvision", "torchaudio", "tensorflow", "keras", "numpy", "scipy", "pandas", "PIL", "tqdm"}
"""They write no model unless a script calls something of such a name. Others may, as those with trainers do."""
KNOWN = {"", *LIBRARIES, *getattr(sys, "stdlib_module_names", ())} - {"importlib", "runpy", "ctypes"}
MODEL_FILE = re.compile(r"[\"']([\w.-][\w./-]*\.(?:pth\.tar|pth?|ckpt|bin|safetensors|h5|keras|onnx|pkl|joblib))[\"']")
MAX_FILES, MAX_PROPOSED = 10_000, 4


def check_writes_model(config: TrainConfig, texts: Mapping[str, str]) -> list[str]:
    """Return a warning if nothing says that the model is written where kubetrain looks for it.

    Args:
        texts: The Python files of the code, by name; empty: it is not known.

    Raises:
        InvalidSetting: if it is certain that nothing is written: all imports are known, and no name is one that writes.
    """
    entry = parse_entry(config.entry)
    if not (entry and texts and script_of(entry)) or config.outputs or not config.publishes:
        return []
    text = "\n".join((*entry.args, *entry.command, *texts.values()))
    if PLACES.search(text):
        return []
    if not WRITES.search(text) and _imported(text) <= KNOWN | _modules(texts):
        raise InvalidSetting(
            f"train.entry: '{entry.name}' writes no model: nothing in its folder saves anything, or names "
            "$KUBETRAIN_OUTPUT: write the model into $KUBETRAIN_OUTPUT/export, or set train.publishes=false"
        )
    saves = next((f" (by {found[0]} in {name})" for name in texts if (found := SAVES.search(texts[name]))), "")
    proposed = json.dumps([*dict.fromkeys(MODEL_FILE.findall(text))][:MAX_PROPOSED] or ["model.pt"])
    return [
        f"neither the code nor the arguments of '{entry.name}' name $KUBETRAIN_OUTPUT: if it saves its model elsewhere"
        f"{saves}, set train.outputs to the files, such as {proposed}; if it uploads it, train.publishes=false"
    ]


def texts_here(entry: Entry) -> dict[str, str]:
    """Return the Python files of the folder of --code, or else of the script's folder, by name."""
    script = Path(script_of(entry)).resolve()
    if not script.is_file():  # also if it is not known
        return {}
    folder = Path(os.environ.get(VARIABLE) or script.parent)
    paths = [script, *(path for path in islice(files_under(folder), MAX_FILES) if path.suffix == ".py")]
    return {os.path.relpath(path, folder): path.read_text(errors="replace") for path in paths}


def _imported(text: str) -> set[str]:
    named = (word.split() for pair in IMPORTS.findall(text) for word in (pair[0] or pair[1]).split(","))
    return {words[0].partition(".")[0] for words in named if words}


def _modules(texts: Mapping[str, str]) -> set[str]:
    return {part for name in texts for part in PurePosixPath(name).with_suffix("").parts}
