"""The script that a container runs by Python or torchrun, and torchrun's options, which kubetrain has as settings."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

LAUNCHER = re.compile(r"(\S*/)?torchrun|torch\.distributed\.(run|launch)|torchelastic\.distributed\.launch")
PYTHON = r"(\S*/)?python[\d.]*( -u)*"
OPTIONS = r"( (?!(-m|--module|--no.python)\b)\S+)*"
"""Options of torchrun, but none after which a module or another program follows."""
BEFORE_SCRIPT = re.compile(rf"{PYTHON}|({PYTHON} -m )?({LAUNCHER.pattern}){OPTIONS}")
SHELL = re.compile(r"(\S*/)?(ba)?sh -e?c")
SHELL_SYNTAX = re.compile(r"[;&|<>()`\n#~*?\[\]{}!\\]")
"""Characters, besides those of variables, that have a meaning only in a shell."""
NODES = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class Torchrun:
    is_used: bool = False
    min_nodes: int = 0
    max_nodes: int = 0
    """Both are 0 if the number of nodes is fixed."""
    fixed_nodes: int = 0
    processes: str = ""
    max_restarts: int | None = None
    options: tuple[str, ...] = ()
    """The names of all options."""


def torchrun_in(command: Sequence[str], *, is_used: bool = False) -> Torchrun:
    """Return the options that a command passes to torchrun.

    Args:
        is_used: True if the image runs torchrun, as for an ElasticJob, so that the command may be options only.
    """
    words = [word for part in command for word in _words(str(part))]
    starts = [number + 1 for number, word in enumerate(words) if LAUNCHER.fullmatch(word)]
    if not starts and not is_used:
        return Torchrun()
    options = _options(words[starts[0] if starts else 0 :])
    nnodes, restarts = options.get("nnodes", ""), options.get("max-restarts", "")
    nodes = NODES.fullmatch(nnodes)
    return Torchrun(
        is_used=True,
        min_nodes=int(nodes[1]) if nodes else 0,
        max_nodes=int(nodes[2]) if nodes else 0,
        fixed_nodes=int(nnodes) if nnodes.isdigit() else 0,
        processes=options.get("nproc-per-node", ""),
        max_restarts=int(restarts) if restarts.isdigit() else None,
        options=tuple(options),
    )


def script_in(command: Sequence[str]) -> list[str]:
    """Return the Python script that a command runs in each process, with its arguments; empty if it runs another."""
    words = without_shell(command)
    start = next((number for number, word in enumerate(words) if word.endswith(".py")), len(words))
    needs_shell = words != command and any("$" in word for word in words[start:])
    return [] if needs_shell or not BEFORE_SCRIPT.fullmatch(" ".join(words[:start])) else [*words[start:]]


def without_shell(command: Sequence[str]) -> Sequence[str]:
    """Return the words of a shell's command, if that is one simple command."""
    *shell, text = command or [""]
    text = text.replace("\\\n", " ").strip()
    if not SHELL.fullmatch(" ".join(shell)) or SHELL_SYNTAX.search(text):
        return command
    return _words(text.removeprefix("exec "))


def _words(part: str) -> list[str]:
    """Split a command for a shell."""
    try:
        return shlex.split(part.replace("\\\n", " ")) if re.search(r"\s", part) else [part]
    except ValueError:
        return part.split()


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options before the script, after which the script's own begin."""
    options: dict[str, str] = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.endswith(".py") or word == "-m":
            break
        if word.startswith("--"):
            name, separator, value = word.removeprefix("--").partition("=")
            options[name.replace("_", "-")] = value if separator else following
    return options
