"""A pod template as settings of pods."""

import re
from collections.abc import Sequence
from typing import Any

from kubetrain_components.secret_values import has_secret, is_secret
from kubetrain_pipelines.translate.commands import command_of
from kubetrain_pipelines.translate.containers import take_container, take_identity
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.torchrun import without_shell
from kubetrain_pipelines.translate.volumes import take_volumes
from kubetrain_trainer.errors import InvalidSetting

SYNC = re.compile(r"((\S*/)?aws )?s3 sync")
WITH_VALUE = {"--endpoint-url", "--region"}
ALONE = {"--no-sign-request", "--only-show-errors", "--no-progress", "--quiet", "--delete"}
SYNCED = "data.uri is what init container {name} copied to {target}: pods find it at /data"
CREDENTIALS = "; put its keys into the Secret that data.secret names"

NOT_TAKEN = (
    "its command may contain a secret, which the file would show: read it from a Secret with valueFrom in env, "
    "and add the container to {setting} of pods.pod"
)
ENDLESS = (
    "pods wait for the end of container {name}: if it keeps running, make it one of initContainers with restartPolicy "
    "Always"
)

NOT_SELECTED = "kubetrain's pods have other labels: to keep them near each other, set pods.together"

SAME_FORM = {
    **dict.fromkeys(("nodeSelector", "affinity", "dnsConfig"), dict),
    **dict.fromkeys(("tolerations", "topologySpreadConstraints", "resourceClaims", "imagePullSecrets"), list),
    **dict.fromkeys(("runtimeClassName", "priorityClassName", "preemptionPolicy"), str),
    **{"hostAliases": list, "shareProcessNamespace": bool},
}
"""Fields of a pod's spec that its patch takes as they are."""
GANG_SCHEDULERS = {"volcano": "volcano", "scheduler-plugins-scheduler": "scheduler-plugins"}
"""Settings by the name of a scheduler."""


def main_container(template: Fields, names: tuple[str, ...]) -> Fields:
    """Return the container that trains: the one that has the name that the operator looks for, or the first."""
    containers = template.at("spec").items("containers")
    if not containers:
        raise InvalidSetting(f"{template.path} has no containers: correct the manifest")
    return next((container for container in containers if container.content.get("name") in names), containers[0])


def take_pod(draft: Draft, template: Fields, main: Fields, *, has_gang: bool = False) -> None:
    """
    Args:
        has_gang: True if a gang scheduler starts the pods, by whose name they are scheduled.
    """
    pod = template.at("spec")
    template.drop("apiVersion", "kind")
    _take_metadata(draft, template)
    drop_own_selectors(draft, pod)
    draft.patch({field: pod.take(field, kind) for field, kind in SAME_FORM.items()})
    _take_scheduler(draft, pod, has_gang)
    _take_network(draft, pod)
    account = pod.take("serviceAccountName", str, "") or pod.take("serviceAccount", str, "")
    draft.patch({"serviceAccountName": account})
    pod.drop_if("serviceAccount", account)
    pod.drop_if("automountServiceAccountToken", bool(account))
    pod.drop_if("enableServiceLinks", False)
    if pod.get("terminationGracePeriodSeconds", int, 0) >= 1:
        draft.set("grace_seconds", pod.take("terminationGracePeriodSeconds", int))
    take_container(draft, main)
    take_identity(draft, main, pod)
    take_dataset_sync(draft, pod)
    take_volumes(draft, pod, main)
    take_other_containers(draft, pod, main)


def _take_metadata(draft: Draft, template: Fields) -> None:
    for name in ("labels", "annotations"):
        values = template.take(f"metadata.{name}", dict, {})
        for key, value in values.items():
            if is_secret(key, str(value)):
                path = template.path_of(f"metadata.{name}.{key}")
                draft.unmapped.append(Unmapped.of(path, value, "it may be a secret, which the file would show"))
            else:
                draft.patch(**{name: {key: str(value)}})


def _take_scheduler(draft: Draft, pod: Fields, has_gang: bool) -> None:
    name = pod.get("schedulerName", str, "")
    if draft.settings.get("scheduler") == "kueue" and name in GANG_SCHEDULERS:
        return
    pod.drop("schedulerName")
    if has_gang and name in GANG_SCHEDULERS:
        draft.set("scheduler", GANG_SCHEDULERS[name])
    elif name != "default-scheduler":
        draft.patch({"schedulerName": name})


def _take_network(draft: Draft, pod: Fields) -> None:
    is_host = pod.take("hostNetwork", bool, False)
    if is_host:
        draft.set("host_network", True)
    pod.drop_if("dnsPolicy", "ClusterFirstWithHostNet" if is_host else "ClusterFirst")
    pod.drop_if("hostIPC", False)
    pod.drop_if("hostPID", False)


def drop_own_selectors(draft: Draft, pod: Fields) -> None:
    """Leave out selectors of the job's pods, which would select none. Topology spread has one of kubetrain's."""
    for constraint in pod.items("topologySpreadConstraints"):
        if _selects_own(draft, constraint.at("labelSelector")):
            constraint.drop("labelSelector")
    affinity = pod.at("affinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        for strength in list(affinity.at(kind).content):
            _drop_terms(draft, affinity.at(kind), strength)
        affinity.drop_if(kind, {})


def _drop_terms(draft: Draft, owner: Fields, strength: str) -> None:
    terms = owner.items(strength)
    own = [term for term in terms if any(_selects_own(draft, selector) for selector in _selectors(term))]
    draft.unmapped += [Unmapped.of(item.path, item.content, NOT_SELECTED) for item in own]
    owner.content[strength] = [term.content for term in terms if term not in own]
    owner.drop_if(strength, [])


def _selectors(term: Fields) -> tuple[Fields, Fields]:
    return term.at("labelSelector"), term.at("podAffinityTerm.labelSelector")


def _selects_own(draft: Draft, selector: Fields) -> bool:
    """Return True for a label whose value is the job's name, unless the template sets it."""
    wanted = list(selector.get("matchLabels", dict, {}).items())
    for item in selector.items("matchExpressions"):
        wanted += [(str(item.content.get("key")), value) for value in item.get("values", list, [])]
    labels = draft.settings.get("pod", {}).get("metadata", {}).get("labels", {})
    return any(value == draft.job != "" and labels.get(name) != value for name, value in wanted)


def take_other_containers(draft: Draft, pod: Fields, main: Fields) -> None:
    sidecars = [item for item in pod.items("containers") if item.path != main.path]
    for setting, containers in (("initContainers", pod.items("initContainers")), ("containers", sidecars)):
        for container in containers:
            _take_other(draft, setting, container)


def _take_other(draft: Draft, setting: str, container: Fields) -> None:
    """Take an init container or a sidecar, except variables that may be secrets."""
    if _has_secret(container.content):
        draft.unmapped.append(Unmapped(container.path, "", NOT_TAKEN.format(setting=setting)))
        container.content.clear()
        return
    _note_privileges(draft, container)
    if setting == "containers":
        draft.note(ENDLESS.format(name=container.name))
    variables = container.items("env")
    secret = [variable for variable in variables if is_secret(variable.name, str(variable.content.get("value", "")))]
    others = {"env": [item.content for item in variables if item not in secret]} if variables else {}
    taken = {**container.take_all(), **others}
    container.content.update({"name": taken.get("name", ""), "env": [item.content for item in secret]})
    draft.patch({setting: [taken]})


def _has_secret(value: Any) -> bool:
    """Return True if a container may have a secret elsewhere than in its variables."""
    if isinstance(value, str):
        return is_secret("", value)
    if isinstance(value, list):
        return has_secret(item for item in value if isinstance(item, str)) or any(map(_has_secret, value))
    if not isinstance(value, dict):
        return False
    words = [item for name in ("command", "args") if isinstance(value.get(name), list) for item in value[name]]
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
