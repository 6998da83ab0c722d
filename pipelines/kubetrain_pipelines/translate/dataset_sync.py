"""An init container that only copies the dataset from S3, which a pipeline does once for all pods."""

import re
from collections.abc import Sequence

from kubetrain_pipelines.translate.commands import command_of
from kubetrain_pipelines.translate.draft import Draft
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.torchrun import without_shell

SYNC = re.compile(r"((\S*/)?aws )?s3 sync")
WITH_VALUE = {"--endpoint-url", "--region"}
ALONE = {"--no-sign-request", "--only-show-errors", "--no-progress", "--quiet", "--delete"}
SYNCED = "dataset_uri is what init container {name} copied to {target}: pods find it at /data"
CREDENTIALS = "; put its keys into the Secret that s3_secret names"


def take_dataset_sync(draft: Draft, pod: Fields) -> None:
    """Take the first `aws s3 sync` of a bucket. `kubetrain train` has no step that copies."""
    for container in [] if draft.framework else pod.items("initContainers"):
        words = list(without_shell(command_of(container)))
        start = words.index("sync") + 1 if "sync" in words else 0
        places, options = _arguments(words[start:])
        is_sync = SYNC.fullmatch(" ".join(words[:start])) and options.keys() <= WITH_VALUE | ALONE
        if is_sync and len(places) == 2 and places[0].startswith("s3://") and "dataset_uri" not in draft.settings:
            is_public = "--no-sign-request" in options
            draft.set("dataset_uri", places[0])
            draft.set("dataset_access", "anonymous" if is_public else "")
            draft.set("s3_endpoint", options.get("--endpoint-url"))
            note = SYNCED.format(name=container.name, target=places[1])
            draft.note(note if is_public else note + CREDENTIALS)
            pod.content["initContainers"].remove(container.content)


def _arguments(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return what is copied and where to, and the options."""
    places, options, rest = [], {}, iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if word.startswith("--"):
            options[name] = value or (next(rest, "") if name in WITH_VALUE else "")
        else:
            places.append(word)
    return places, options
