"""The command of a container, its folder, and what to say if it is not taken over."""

import re
import shlex
from collections.abc import Sequence

from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields

NOT_SHOWN = (
    "it may contain a secret, which everyone would see: let the program read a variable, and set pods.secret_env"
)
EXPANDED = re.compile(r"(?P<kept>\$\$(?=\$*\()|\$\([^)]*\))|\$\$")
"""This is what Kubernetes expands in commands. An entry expands `kept` by itself."""


def command_of(*containers: Fields) -> list[str]:
    """Return the words of a command, of which a TrainJob may have one part and its runtime the other."""
    return [
        str(word) for name in ("command", "args") for container in containers for word in container.get(name, list, [])
    ]


def take_folder(*containers: Fields) -> str:
    return "".join(container.take("workingDir", str, "") for container in containers)


def in_folder(folder: str, command: Sequence[str]) -> list[str]:
    """Return the command as it starts in the folder, because kubetrain's pods have that of the image."""
    return [*(["sh", "-c", f'cd {shlex.quote(folder)} && exec "$@"', "sh"] if folder else []), *command]


def unescaped(words: Sequence[str]) -> list[str]:
    """Return the words for an entry, in which $$ is a shell's. Kubernetes makes one $ of it."""
    return [EXPANDED.sub(lambda found: found["kept"] or "$", word) for word in words]


def name_command(draft: Draft, reason: str, *containers: Fields) -> None:
    for container in containers:
        for name in ("command", "args"):
            if value := container.take(name, list):
                draft.unmapped.append(Unmapped.of(container.path_of(name), value, reason))
