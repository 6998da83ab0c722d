"""The script or command of your own that a training runs instead of the trainer's loop: the setting `train.entry`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, did_you_mean

KEYS = ("script", "args", "command")
EVALUATION = "evaluation"
EXAMPLE = 'write {"script": "train.py", "args": ["--epochs=3"]} or {"command": ["python", "train.py"]}'


@dataclass(frozen=True)
class Entry:
    script: str = ""
    """Python file, which runs in each process of the training."""
    args: tuple[str, ...] = ()
    """Arguments of the script."""
    command: tuple[str, ...] = ()
    """Program with its arguments, which runs once in each pod."""
    evaluation: Entry | None = None
    """Evaluates the model, in a pod of its own; None: nothing does."""

    @property
    def name(self) -> str:
        return self.script or self.command[0]


def parse_entry(given: Mapping[str, Any]) -> Entry | None:
    """Return the entry that the setting describes, or None if it is empty: then the trainer's own loop runs.

    Raises:
        InvalidSetting: if it is neither a script nor a command.
    """
    return _parse("train.entry", given, (*KEYS, EVALUATION)) if given else None


def _parse(name: str, given: Mapping[str, Any], keys: tuple[str, ...]) -> Entry:
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"{name} must be a JSON object, not {given!r}: {EXAMPLE}")
    for key in given:
        if key not in keys:
            raise InvalidSetting(f"{name} has an unknown key '{key}': {did_you_mean(key, keys)}")
    if bool(given.get("script")) == bool(given.get("command")):
        raise InvalidSetting(f"{name} needs either a script or a command: {EXAMPLE}")
    if given.get("command") and given.get("args"):
        raise InvalidSetting(f"{name}: args belong to a script; add them to the command, {given['command']}")
    evaluation = given.get(EVALUATION)
    return Entry(
        script=_text(f"{name}.script", given.get("script", "")),
        args=_texts(f"{name}.args", given.get("args", [])),
        command=_texts(f"{name}.command", given.get("command", [])),
        evaluation=_parse(f"{name}.{EVALUATION}", evaluation, KEYS) if evaluation else None,
    )


def _texts(name: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, (list, tuple)):
        raise InvalidSetting(f"{name} must be a JSON list, such as {['python', 'train.py']}, not {given!r}")
    return tuple(_text(f"each part of {name}", part) for part in given)


def _text(name: str, given: Any) -> str:
    """Return the text; a number is one too, because JSON has numbers where a command line has text."""
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise InvalidSetting(f"{name} must be a string, not {given!r}")
    return str(given)
