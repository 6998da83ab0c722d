"""Finds out without running it whether a script or command of your own can start here."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.own_code.requirements import check_requirements
from kubetrain_trainer.settings.entry import Entry

PYTHON = ("python", "python3", "torchrun")
FLAGS = re.compile(r"-[bBdEiIOPqRsSuvx]+|-[WX].+|--[\w-]+=.*|--standalone|--run[-_]path|--virtual[-_]local[-_]rank")
"""Options of Python and torchrun that are one word, before a script."""
WITH_VALUE = (
    "-W",
    "-X",
    "--check-hash-based-pycs",
    "--nnodes",
    "--nproc-per-node",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--local-addr",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--max-restarts",
    "--monitor-interval",
    "--start-method",
    "--role",
    "--log-dir",
    "-r",
    "--redirects",
    "-t",
    "--tee",
    "--local-ranks-filter",
)
"""Their options whose value is the next word. After any other, such as -m or --no-python, the script is not known."""


def check_entry(entry: Entry, framework: str, requirements: str) -> str:
    """Return a sentence for the log.

    Raises:
        InvalidSetting: if a script, a program, a module that a script imports or what starts its processes is missing.
    """
    if framework == "pytorch" and entry.script and importlib.util.find_spec("torch") is None:
        raise InvalidSetting(
            f"train.entry: torchrun starts '{entry.script}', but there is no PyTorch where it would run: choose a "
            "pods.image that has it, or set a command as train.entry"
        )
    if requirements:
        check_requirements(requirements)
    for part in _entries(entry):
        if part.command and not requirements:
            check_program(part.command[0])
    for script in scripts_of(entry):
        _check_script(script, may_lack=bool(requirements))
    return f"'{entry.name}' can start"


def check_scripts_here(entry: Entry, requirements: str) -> None:
    """Check the scripts that this Python will run: a command may start another one.

    Raises:
        InvalidSetting: if a script, or a module that it imports, is missing.
    """
    for part in _entries(entry):
        if part.script:
            _check_script(part.script, may_lack=bool(requirements))


def check_program(name: str) -> None:
    if shutil.which(name) is None:
        raise InvalidSetting(f"train.entry: there is no program '{name}' where the training runs")


def existing_script(name: str) -> Path:
    path = Path(name).resolve()
    if not path.is_file():
        raise InvalidSetting(f"train.entry: there is no script '{name}' in {Path.cwd()}, where the training runs")
    return path


def scripts_of(entry: Entry) -> list[str]:
    """Return the scripts that the training and the evaluation run, as far as they are known."""
    return [script for part in _entries(entry) if (script := script_of(part))]


def script_of(entry: Entry) -> str:
    """Return the script that the training runs; empty if it is not known."""
    return entry.script or _script_of(entry.command)


def _entries(entry: Entry) -> list[Entry]:
    return [entry, entry.evaluation] if entry.evaluation else [entry]


def _script_of(command: Sequence[str]) -> str:
    """Return the script that a command of Python runs; empty if it is not known."""
    if not command or Path(command[0]).name not in PYTHON:
        return ""
    words = iter(command[1:])
    for word in words:
        if word.replace("_", "-") in WITH_VALUE:
            next(words, "")
        elif not FLAGS.fullmatch(word):
            return word if word.endswith(".py") and not word.startswith("-") else ""
    return ""


def _check_script(script: str, *, may_lack: bool) -> None:
    path = existing_script(script)
    text = path.read_text()
    try:
        module = ast.parse(text, script)
    except SyntaxError as error:
        raise InvalidSetting(f"train.entry: '{script}' is not Python: {error}") from None
    sys.path.insert(0, str(path.parent))
    missing = sorted({name for name in _imported(module) if importlib.util.find_spec(name) is None})
    if missing and not may_lack and "sys.path" not in text:  # which may add the folders that have them
        raise InvalidSetting(
            f"train.entry: '{script}' imports modules that are not installed where it would run: {', '.join(missing)}"
        )


def _imported(module: ast.Module) -> Iterator[str]:
    """Yield the packages that the script imports in any case: neither in a function nor in a `try`."""
    for statement in module.body:
        if isinstance(statement, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module.partition(".")[0]
