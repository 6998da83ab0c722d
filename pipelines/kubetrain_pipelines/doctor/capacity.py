"""Check that the nodes and the quota have room for a run. Pure functions."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kubetrain_components.jobs.kubernetes.manifests.node_choice import ANY_NODE
from kubetrain_components.jobs.pod_checks import REQUIRED
from kubetrain_components.jobs.quantity import amount
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, warning
from kubetrain_pipelines.doctor.needs import Needs, Pods

REPELLING_EFFECTS = ("NoSchedule", "NoExecute")
ADD_DEVICES = "install the device plugin that advertises it, or correct pods.gpu_resource or pods.rdma"


def judge_nodes(nodes: Sequence[Manifest], training: Sequence[Pods], *, can_grow: bool) -> Finding:
    """
    Args:
        can_grow: True if the cluster adds nodes for pending pods.
    """
    pods, count = training[-1], sum(item.count for item in training)  # they differ only in their role
    requests = pods.resources()
    usable = [node for node in nodes if admits(node, pods.spec)]
    at_once = len(training) if pods.spec.get("hostNetwork") else None  # pods of a role use the same port of the node
    room = sum(_max_pods(node, requests, at_once) for node in usable)
    evidence = f"{len(usable)} of {len(nodes)} nodes admit a training pod ({_described(requests)})"
    evidence += ", one each because of pods.host_network" if at_once else ""
    if room >= count:
        growth = f"; training begins with {count} and grows to {pods.most} if there is room" if pods.most else ""
        return _enough(
            f"{evidence}, with room for {room} pods if empty{growth}",
            [*unjudged_affinity(pods.spec), *_unjudged_rules(pods.spec)],
        )
    if can_grow:
        return warning(
            f"{evidence}, with room for {room} of {count} pods: the autoscaler must add nodes",
            "check that it can add such nodes, or request less",
        )
    if not usable:
        return missing(
            evidence,
            "correct nodeSelector, affinity or tolerations of pods.pod\n"
            "or label nodes: kubectl label node NAME KEY=VALUE",
        )
    if room:
        return missing(f"{evidence}, with room for {room} of {count} pods if empty", "request less, or add nodes")
    return _too_small(evidence, usable, requests)


def admits(node: Manifest, spec: Manifest) -> bool:
    """Return True if labels and taints let such a pod onto the node."""
    labels, of_node = node["metadata"].get("labels") or {}, node.get("spec") or {}
    if of_node.get("unschedulable") or not matches_affinity(node, spec):
        return False
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    taints = [item for item in of_node.get("taints") or [] if item["effect"] in REPELLING_EFFECTS]
    return all(any(_tolerates(toleration, taint) for toleration in spec.get("tolerations") or []) for taint in taints)


def _unjudged_rules(spec: Manifest) -> list[str]:
    spread = [
        constraint
        for constraint in spec.get("topologySpreadConstraints") or []
        if constraint["whenUnsatisfiable"] != "ScheduleAnyway"
    ]
    rules = {"topologySpreadConstraints": spread, "resourceClaims": spec.get("resourceClaims")}
    return [name for name, values in rules.items() if values]


def _enough(evidence: str, unjudged: Sequence[str]) -> Finding:
    if not unjudged:
        return ok(evidence)
    rules = " and ".join(unjudged)
    return warning(f"{evidence}; {rules} may leave less room, which was not checked", f"check that {rules} can be met")


@dataclass(frozen=True)
class Shortage:
    quota: str
    name: str
    hard: Decimal
    used: Decimal
    wanted: Decimal
    has_scopes: bool = False
    """True if the quota counts only some pods, perhaps none of this run."""

    def __str__(self) -> str:
        hard, used, wanted = (_formatted(self.name, item) for item in (self.hard, self.used, self.wanted))
        scoped = " in its scopes" if self.has_scopes else ""
        return f"{self.quota} allows {hard} {self.name}{scoped}, of which {used} is used, but the run needs {wanted}"

    @property
    def is_permanent(self) -> bool:
        return self.wanted > self.hard


def judge_quota(quotas: Sequence[Manifest], needs: Needs, new_claims: Sequence[Manifest], namespace: str) -> Finding:
    """
    Args:
        new_claims: The PVCs that the run has to create.
    """
    wanted = needs.peak() | _storage(new_claims)
    short = [shortage for quota in quotas for shortage in _shortages(quota, wanted)]
    if not short:
        return ok(f"room for the run ({len(quotas)} in this namespace)" if quotas else "none in this namespace")
    evidence, remedy = "; ".join(map(str, short)), "\n".join(_commands_to_raise(short, namespace))
    if all(item.has_scopes for item in short):
        unchecked = "it was not checked whether the scopes include the run's pods"
        return warning(f"{evidence}; {unchecked}", f"if they do, wait until other jobs have ended, or\n{remedy}")
    short = [item for item in short if not item.has_scopes]
    if any(item.is_permanent for item in short):
        return missing(evidence, f"{remedy}\nor request less with pods.workers, pods.cpu, pods.memory, pods.gpus")
    return warning(evidence, f"wait until other jobs have ended, or\n{remedy}")


def _shortages(quota: Manifest, wanted: Mapping[str, Decimal]) -> Iterator[Shortage]:
    """Yield what exceeds the quota. One for BestEffort is ignored: pods of a run request CPU and memory."""
    spec = quota.get("spec") or {}
    if "BestEffort" in _scopes(spec):
        return
    used = (quota.get("status") or {}).get("used") or {}
    for name, hard in (spec.get("hard") or {}).items():
        short = Shortage(
            quota=quota["metadata"]["name"],
            name=name,
            hard=amount(str(hard)),
            used=amount(str(used.get(name, "0"))),
            wanted=wanted.get(name, Decimal(0)),
            has_scopes=bool(_scopes(spec)),
        )
        if short.wanted and short.used + short.wanted > short.hard:
            yield short


def _scopes(spec: Mapping[str, Any]) -> list[str]:
    selected = (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    return [*(spec.get("scopes") or []), *(item["scopeName"] for item in selected)]


def _commands_to_raise(short: Sequence[Shortage], namespace: str) -> Iterator[str]:
    for quota in dict.fromkeys(item.quota for item in short):
        hard = {item.name: _formatted(item.name, item.used + item.wanted) for item in short if item.quota == quota}
        patch = json.dumps({"spec": {"hard": hard}})
        yield f"kubectl -n {namespace} patch resourcequota {quota} --type=merge -p '{patch}'"


def _too_small(evidence: str, nodes: Iterable[Manifest], requests: Mapping[str, Decimal]) -> Finding:
    largest = {name: max((_allocatable(node, name) for node in nodes), default=Decimal(0)) for name in requests}
    short = {name: value for name, value in largest.items() if value < requests[name]}
    if not short:
        return missing(f"{evidence}, but none has all of it", "request less, or add larger nodes")
    lacks = "; ".join(
        f"no node has {_formatted(name, requests[name])} {name}: the maximum is {_formatted(name, value)}"
        for name, value in short.items()
    )
    devices = sorted({name for node in nodes for name in _allocatable_of(node) if "/" in name})
    has = f" (nodes advertise {', '.join(devices)})" if devices else ""
    remedy = ADD_DEVICES + has if any("/" in name for name in short) else "request less, or add larger nodes"
    return missing(f"{evidence}, but {lacks}", remedy)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _max_pods(node: Manifest, requests: Mapping[str, Decimal], at_once: int | None) -> int:
    """Return the number of such pods that fit on the empty node, and at most `at_once`."""
    fitting = min((int(_allocatable(node, name) // value) for name, value in requests.items() if value), default=0)
    return fitting if at_once is None else min(fitting, at_once)


def _allocatable(node: Manifest, name: str) -> Decimal:
    return amount(str(_allocatable_of(node).get(name, "0")))


def _allocatable_of(node: Manifest) -> Mapping[str, Any]:
    """Return what the node offers to pods: nothing until its kubelet has reported it."""
    return (node.get("status") or {}).get("allocatable") or {}


def _storage(claims: Sequence[Manifest]) -> dict[str, Decimal]:
    number = Decimal(len(claims))
    wanted = {"persistentvolumeclaims": number, "count/persistentvolumeclaims": number, "requests.storage": Decimal(0)}
    for claim in claims:
        size = amount(claim["spec"]["resources"]["requests"]["storage"])
        named = claim["spec"].get("storageClassName")
        keys = ["requests.storage", *([f"{named}.storageclass.storage.k8s.io/requests.storage"] if named else [])]
        for key in keys:
            wanted[key] = wanted.get(key, Decimal(0)) + size
    return {name: value for name, value in wanted.items() if value}


def _described(requests: Mapping[str, Decimal]) -> str:
    return ", ".join(f"{_formatted(name, value)} {name}" for name, value in requests.items())


def _formatted(name: str, value: Decimal) -> str:
    """Format memory and storage with the largest binary suffix that divides them, fractions in thousandths."""
    if name.endswith(("memory", "storage")):
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            factor = amount(f"1{suffix}")
            if value >= factor and value % factor == 0:
                return f"{int(value / factor)}{suffix}"
    if value != value.to_integral_value():
        return f"{int(value * 1000)}m"
    return str(int(value))


def matches_affinity(node: Manifest, spec: Manifest) -> bool:
    """Return True if the node has what the pod's node affinity requires."""
    required = (((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)) or {}
    terms = required.get("nodeSelectorTerms") or []
    return not required or any(_matches_term(node["metadata"], term) for term in terms)


def unjudged_affinity(spec: Manifest) -> list[str]:
    """Return the rules that depend on other pods, which are not evaluated."""
    affinity = spec.get("affinity") or {}
    terms = {name: (affinity.get(name) or {}).get(REQUIRED) or [] for name in ("podAffinity", "podAntiAffinity")}
    return [name for name, each in terms.items() if any(term.get("topologyKey") != ANY_NODE for term in each)]


def _matches_term(metadata: Manifest, term: Mapping[str, Any]) -> bool:
    labels, fields = metadata.get("labels") or {}, {"metadata.name": metadata.get("name", "")}
    rules = [(expression, labels) for expression in term.get("matchExpressions") or []]
    rules += [(field, fields) for field in term.get("matchFields") or []]
    return bool(rules) and all(_holds(rule, values) for rule, values in rules)  # an empty term matches no node


def _holds(rule: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    found, wanted = values.get(rule["key"]), rule.get("values") or []
    number = next(iter(wanted), None)
    match rule["operator"]:
        case "In":
            return found in wanted
        case "NotIn":
            return found not in wanted
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt":
            return _is_greater(found, number)
        case _:
            return _is_greater(number, found)


def _is_greater(left: str | None, right: str | None) -> bool:
    try:
        return int(left or "") > int(right or "")
    except ValueError:
        return False
