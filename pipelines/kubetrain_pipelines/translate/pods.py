"""A pod template as settings of the placement."""

from kubetrain_components.secret_values import is_secret
from kubetrain_pipelines.translate.containers import take_container, take_identity
from kubetrain_pipelines.translate.dataset_sync import take_dataset_sync
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.other_containers import take_other_containers
from kubetrain_pipelines.translate.volumes import take_volumes
from kubetrain_trainer.errors import InvalidSetting

NOT_SELECTED = "kubetrain's pods have other labels: to keep them near each other, set together"

SAME_FORM: dict[str, tuple[str, type]] = {
    "nodeSelector": ("node_selector", dict),
    "affinity": ("affinity", dict),
    "tolerations": ("tolerations", list),
    "topologySpreadConstraints": ("topology_spread", list),
    "runtimeClassName": ("runtime_class", str),
    "priorityClassName": ("priority_class", str),
    "resourceClaims": ("resource_claims", list),
}
"""Fields of a pod's spec with a setting of the same form."""
GANG_SCHEDULERS = {"volcano": "volcano", "scheduler-plugins-scheduler": "scheduler-plugins"}
"""Settings by the name of a scheduler."""
SIDECAR = "sidecar.istio.io/inject"


def main_container(template: Fields, names: tuple[str, ...]) -> Fields:
    """Return the container that trains: the one that has the name that the operator looks for, or the first."""
    containers = template.at("spec").items("containers")
    if not containers:
        raise InvalidSetting(f"{template.path} has no containers: correct the manifest")
    return next((each for each in containers if each.content.get("name") in names), containers[0])


def take_pod(draft: Draft, template: Fields, main: Fields, *, has_gang: bool = False) -> None:
    """
    Args:
        has_gang: True if a gang scheduler starts the pods, by whose name they are scheduled.
    """
    pod = template.at("spec")
    template.drop("apiVersion", "kind")
    _take_metadata(draft, template)
    drop_own_selectors(draft, pod)
    for field, (setting, kind) in SAME_FORM.items():
        draft.set(setting, pod.take(field, kind))
    draft.set("image_pull_secrets", [each.name for each in pod.items("imagePullSecrets")])
    pod.drop("imagePullSecrets")
    _take_scheduler(draft, pod, has_gang)
    _take_network(draft, pod)
    account = pod.take("serviceAccountName", str, "") or pod.take("serviceAccount", str, "")
    draft.set("service_account", account)
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
        if str(values.pop(SIDECAR, "")).lower() == "true":
            draft.set("istio", True)
        for key, value in values.items():
            if is_secret(key, str(value)):
                path = template.path_of(f"metadata.{name}.{key}")
                draft.unmapped.append(Unmapped.of(path, value, "it may be a secret, which parameters would show"))
            else:
                draft.set(name, {key: str(value)})


def _take_scheduler(draft: Draft, pod: Fields, has_gang: bool) -> None:
    name = pod.get("schedulerName", str, "")
    if draft.settings.get("scheduler") == "kueue" and name in GANG_SCHEDULERS:
        return
    pod.drop("schedulerName")
    if has_gang and name in GANG_SCHEDULERS:
        draft.set("scheduler", GANG_SCHEDULERS[name])
    elif name != "default-scheduler":
        draft.set("scheduler_name", name)


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
    own = [each for each in terms if any(_selects_own(draft, selector) for selector in _selectors(each))]
    draft.unmapped += [Unmapped.of(each.path, each.content, NOT_SELECTED) for each in own]
    owner.content[strength] = [each.content for each in terms if each not in own]
    owner.drop_if(strength, [])


def _selectors(term: Fields) -> tuple[Fields, Fields]:
    return term.at("labelSelector"), term.at("podAffinityTerm.labelSelector")


def _selects_own(draft: Draft, selector: Fields) -> bool:
    """Return True for a label whose value is the job's name, unless the template sets it."""
    wanted = list(selector.get("matchLabels", dict, {}).items())
    for each in selector.items("matchExpressions"):
        wanted += [(str(each.content.get("key")), value) for value in each.get("values", list, [])]
    labels = draft.settings.get("labels", {})
    return any(value == draft.job != "" and labels.get(name) != value for name, value in wanted)
