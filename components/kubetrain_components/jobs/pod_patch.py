"""A patch of a pod template, as users write it in the setting `pod`.

It merges as Kubernetes' strategic merge patches do: objects by their fields, items of most lists by their name, others
are appended. The container named `main` is the one that trains, whose real name depends on the kind of job.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from kubetrain_components.manifest import Manifest, without_empty

MAIN = "main"
KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env", "imagePullSecrets", "resourceClaims"), "name"),
    **{"claims": "name", "volumeMounts": "mountPath", "ports": "containerPort"},
}
"""The fields by which items of lists merge."""
STANDARD = ("cpu", "memory", "ephemeral-storage")
"""The resources that every node has; all others are devices."""


def merge(base: Manifest, patch: Mapping[str, Any]) -> Manifest:
    """Return the object with the patch, in which None removes a field."""
    values = {name: _merged(name, base.get(name), value) for name, value in patch.items()}
    return {name: value for name, value in {**base, **values}.items() if value is not None}


def _merged(name: str, old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return merge(dict(old), new)
    if isinstance(old, list) and isinstance(new, list):
        key = KEYS.get(name, "")
        return _merged_items(old, new, key) if key else [*old, *(item for item in new if item not in old)]
    return new


def _merged_items(old: list[Manifest], new: list[Manifest], key: str) -> list[Manifest]:
    patches = {item[key]: item for item in new}
    known = [item[key] for item in old]
    return [
        *(merge(item, patches.get(item[key], {})) for item in old),
        *(item for item in new if item[key] not in known),
    ]


def pod_patch(
    spec: Mapping[str, Any] | None = None, main: Mapping[str, Any] | None = None, **metadata: Mapping[str, Any]
) -> Manifest:
    """Return a patch without what is empty.

    Args:
        main: Fields of the main container.
        metadata: Labels and annotations.
    """
    container = without_empty(dict(main or {}))
    own = {"containers": [{"name": MAIN, **container}]} if container else {}
    merged = merge(own, spec or {})
    return without_empty({"metadata": without_empty(metadata), "spec": without_empty(merged)})


def named(items: Iterable[Mapping[str, Any]] | None, name: str) -> Mapping[str, Any]:
    return next((item for item in items or [] if item.get("name") == name), {})


def devices_in(main: Mapping[str, Any]) -> dict[str, Any]:
    """Return the devices that a container requests."""
    resources = main.get("resources") or {}
    requested = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {name: count for name, count in requested.items() if name not in STANDARD}


def without_devices(pod: Manifest, limits: Mapping[str, Any]) -> Manifest:
    """Return the patch with these limits of the main container, and without devices."""
    spec = {name: value for name, value in (pod.get("spec") or {}).items() if name != "resourceClaims"}
    main = {**named(spec.get("containers"), MAIN), "name": MAIN, "resources": without_empty({"limits": dict(limits)})}
    others = [container for container in spec.get("containers") or [] if container["name"] != MAIN]
    return without_empty({**pod, "spec": {**spec, "containers": [without_empty(main), *others]}})


def small_pod(pod: Manifest, limits: Mapping[str, Any], keep: tuple[str, ...] = ()) -> Manifest:
    """Return the patch of a pod that only tries something on the same nodes: without devices and other containers.

    Args:
        limits: Limits of its main container.
        keep: Init containers that it needs.
    """
    bare = without_devices(pod, limits)["spec"]
    inits = bare.get("initContainers") or []
    gone = {item["name"] for item in inits if item["name"] not in keep}  # each fills a volume of its own name
    main = dict(named(bare["containers"], MAIN))
    main["volumeMounts"] = [mount for mount in main.get("volumeMounts") or [] if mount["name"] not in gone]
    spec = {
        **bare,
        "containers": [without_empty(main)],
        "initContainers": [item for item in inits if item["name"] in keep],
        "volumes": [volume for volume in bare.get("volumes") or [] if volume["name"] not in gone],
    }
    return {**pod, "spec": without_empty(spec)}
