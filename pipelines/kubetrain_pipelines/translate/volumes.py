"""The volumes of a pod and their mounts, except those in the places of kubetrain's own."""

import re
from collections.abc import Iterable
from typing import Any

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.jobs.kubernetes.manifests.volumes import SHARED_MEMORY
from kubetrain_components.secret_values import is_secret
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields

SHM = "/dev/shm"  # noqa: S108 - the pod's own
OWN_PATHS = (DATA_PATH, OUTPUT_PATH, SHM)
NOT_TAKEN = (
    "it may be a secret, which the file would show: store it in a Secret, and refer to that with the volume's own "
    "field, such as nodePublishSecretRef"
)
OWN_NAMES = re.compile(rf"claim-\d+|{SHARED_MEMORY}")


def take_volumes(draft: Draft, pod: Fields, main: Fields) -> None:
    mounts, volumes, others = main.items("volumeMounts"), pod.items("volumes"), _mounts_of_others(pod, main)
    _rename((*mounts, *volumes, *others), OWN_NAMES, "job-{}")
    if not draft.framework:
        _propose_data(draft, mounts, volumes)
    memory = {item.name: item for item in volumes if item.get("emptyDir.medium", str) == "Memory"}
    own = [item for item in mounts if _is_own(draft, _path(item))]
    kept = [item for item in mounts if item not in own]
    for mount in [item for item in own if _path(item) == SHM and item.name in memory]:
        _take_shared_memory(draft, memory[mount.name])
        _rename((*kept, *others), re.compile(re.escape(mount.name)), SHARED_MEMORY)
        mount.content.clear()
    unused = {item.name for item in own} - {other.name for other in (*kept, *others)}
    draft.patch(main={"volumeMounts": [item.take_all() for item in kept]})
    for volume in volumes:
        if volume.content and volume.name not in unused:
            _take_volume(draft, volume)


def _propose_data(draft: Draft, mounts: list[Fields], volumes: list[Fields]) -> None:
    claims = {volume.name: volume.get("persistentVolumeClaim.claimName", str) for volume in volumes}
    for mount in [item for item in mounts if claims.get(item.name) and not _path(item).startswith(OUTPUT_PATH)]:
        uri = f"pvc://{claims[mount.name]}/{mount.get('subPath', str, '')}".rstrip("/")
        draft.note(f"if the dataset of the job is at {_path(mount)}, set data.uri={uri}: pods find it at /data")


def _mounts_of_others(pod: Fields, main: Fields) -> list[Fields]:
    others = [*pod.items("initContainers"), *pod.items("containers")]
    return [mount for other in others if other.path != main.path for mount in other.items("volumeMounts")]


def _rename(items: Iterable[Fields], old: re.Pattern[str], new: str) -> None:
    for item in items:
        if old.fullmatch(name := item.name):
            item.content["name"] = new.format(name)


def _is_own(draft: Draft, path: str) -> bool:
    """Return True for a place of kubetrain's. A program of the user's finds its data where it always did."""
    places = (SHM,) if draft.framework else OWN_PATHS
    return any(path == own or path.startswith(f"{own}/") for own in places)


def _take_shared_memory(draft: Draft, volume: Fields) -> None:
    size = volume.get("emptyDir.sizeLimit", (str, int), "")
    draft.set("shm_size", str(size))
    if not size:
        draft.note("the volume at /dev/shm has no sizeLimit, but kubetrain's has 1Gi: set pods.shm_size for more")
    volume.content.clear()


def _take_volume(draft: Draft, volume: Fields) -> None:
    if "hostPath" in volume.content:
        draft.note(f"volume {volume.name} is a hostPath, which Pod Security baseline and restricted refuse")
    draft.patch({"volumes": [_without_secrets(draft, volume.path, volume.take_all())]})


def _without_secrets(draft: Draft, path: str, value: Any) -> Any:
    """Return the value without the fields that may be secrets, such as options of a driver."""
    if isinstance(value, list):
        return [_without_secrets(draft, f"{path}[{number}]", each) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    secret = {name: each for name, each in value.items() if _may_be_secret(name, each)}
    for name, each in secret.items():
        draft.unmapped.append(Unmapped.of(f"{path}.{name}", each, NOT_TAKEN))
    others = {name: each for name, each in value.items() if name not in secret}
    return {name: _without_secrets(draft, f"{path}.{name}", each) for name, each in others.items()}


def _may_be_secret(name: str, value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(is_secret(name, str(text)) for text in texts if not isinstance(text, dict | list))


def _path(mount: Fields) -> str:
    return str(mount.content.get("mountPath", "")).rstrip("/")
