"""Init containers and sidecars of a pod."""

from typing import Any

from kubetrain_components.secret_values import has_secret, is_secret
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields

NOT_TAKEN = (
    "its command may contain a secret, which parameters would show: read it from a Secret with valueFrom in env, "
    "and add the container to {setting}"
)
ENDLESS = "pods wait for the end of container {name}: if it keeps running, set restartPolicy Always in init_containers"


def take_other_containers(draft: Draft, pod: Fields, main: Fields) -> None:
    sidecars = [each for each in pod.items("containers") if each.path != main.path]
    for setting, containers in (("init_containers", pod.items("initContainers")), ("extra_containers", sidecars)):
        for container in containers:
            _take_other(draft, setting, container)


def _take_other(draft: Draft, setting: str, container: Fields) -> None:
    """Take an init container or a sidecar, except variables that may be secrets."""
    if _has_secret(container.content):
        draft.unmapped.append(Unmapped(container.path, "", NOT_TAKEN.format(setting=setting)))
        container.content.clear()
        return
    _note_privileges(draft, container)
    if setting == "extra_containers":
        draft.note(ENDLESS.format(name=container.name))
    variables = container.items("env")
    secret = [each for each in variables if is_secret(each.name, str(each.content.get("value", "")))]
    others = {"env": [each.content for each in variables if each not in secret]} if variables else {}
    taken = {**container.take_all(), **others}
    container.content.update({"name": taken.get("name", ""), "env": [each.content for each in secret]})
    draft.set(setting, [taken])


def _has_secret(value: Any) -> bool:
    """Return True if a container may have a secret elsewhere than in its variables."""
    if isinstance(value, str):
        return is_secret("", value)
    if isinstance(value, list):
        return has_secret(each for each in value if isinstance(each, str)) or any(map(_has_secret, value))
    if not isinstance(value, dict):
        return False
    words = [each for name in ("command", "args") if isinstance(value.get(name), list) for each in value[name]]
    inner = [each for name, each in value.items() if name not in ("env", "image")]
    named = is_secret(str(value.get("name", "")), str(value.get("value", "")))
    return named or has_secret(words) or any(map(_has_secret, inner))


def _note_privileges(draft: Draft, container: Fields) -> None:
    context = container.at("securityContext")
    if context.get("runAsUser", object) == 0 and context.get("runAsNonRoot", object) is not False:
        draft.note(
            f"container {container.name} runs as root, which its pod forbids: choose another user, or set runAsNonRoot "
            "to false in its securityContext"
        )
    if context.get("privileged", object) is True or context.get("capabilities.add", object):
        draft.note(f"container {container.name} has privileges that Pod Security restricted refuses")
