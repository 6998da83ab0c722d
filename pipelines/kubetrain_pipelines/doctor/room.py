"""Whether nodes and quota have room for a run. Pure functions."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kubetrain_components.jobs.quantity import amount
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, warning
from kubetrain_pipelines.doctor.needs import Needs, Pods

KEEPS_OUT = ("NoSchedule", "NoExecute")
BRING_DEVICES = "have the device plugin installed that advertises it, or correct gpu_resource or rdma_resource"


def judge_nodes(nodes: Sequence[Manifest], training: Sequence[Pods], *, can_grow: bool) -> Finding:
    """
    Args:
        can_grow: Whether something makes nodes where pods wait for some.
    """
    pods, count = training[-1], sum(each.count for each in training)  # all alike but for their role
    asked = pods.asks()
    open_nodes = [node for node in nodes if lets_in(node, pods.spec)]
    room = sum(_fits(node, asked) for node in open_nodes)
    evidence = f"{len(open_nodes)} of {len(nodes)} nodes let in a pod of the training ({_described(asked)})"
    if room >= count:
        return ok(f"{evidence}, and empty have room for {room}")
    if can_grow:
        return warning(
            f"{evidence}, with room for {room} of {count}: the autoscaler must make more",
            "see that it may make nodes of that kind, or ask for less",
        )
    if not open_nodes:
        return missing(
            evidence, "correct node_selector or tolerations, or label nodes: kubectl label node NAME KEY=VALUE"
        )
    if room:
        return missing(f"{evidence}, and empty have room for {room} of {count}", "ask for less, or add nodes")
    return _too_small(evidence, open_nodes, asked)


def lets_in(node: Manifest, spec: Manifest) -> bool:
    """By labels and taints; an affinity is the scheduler's to judge."""
    labels = node["metadata"].get("labels") or {}
    if node["spec"].get("unschedulable"):
        return False
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    taints = [each for each in node["spec"].get("taints") or [] if each["effect"] in KEEPS_OUT]
    return all(any(_tolerates(each, taint) for each in spec.get("tolerations") or []) for taint in taints)


@dataclass(frozen=True)
class Shortage:
    quota: str
    name: str
    hard: Decimal
    used: Decimal
    wanted: Decimal

    def __str__(self) -> str:
        hard, used, wanted = (_written(self.name, each) for each in (self.hard, self.used, self.wanted))
        return f"{self.quota} allows {hard} {self.name}, of which {used} are used, and the run needs {wanted}"

    @property
    def is_for_good(self) -> bool:
        return self.wanted > self.hard


def judge_quota(quotas: Sequence[Manifest], needs: Needs, new_claims: Sequence[Manifest], namespace: str) -> Finding:
    """
    Args:
        new_claims: Those that the run has to make.
    """
    wanted = needs.at_once() | _storage(new_claims)
    short = [each for quota in quotas for each in _shortages(quota, wanted)]
    if not short:
        return ok(f"{len(quotas)} with room for the run" if quotas else "none in this namespace")
    evidence, remedy = "; ".join(map(str, short)), "\n".join(_raising(short, namespace))
    if any(each.is_for_good for each in short):
        return missing(evidence, f"{remedy}\nor ask for less by workers, cpu, memory, gpus")
    return warning(evidence, f"wait until others have ended, or\n{remedy}")


def _shortages(quota: Manifest, wanted: Mapping[str, Decimal]) -> Iterator[Shortage]:
    """Of a quota for some pods only, nobody knows whether these are among them."""
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        return
    used = (quota.get("status") or {}).get("used") or {}
    for name, hard in quota["spec"]["hard"].items():
        short = Shortage(
            quota=quota["metadata"]["name"],
            name=name,
            hard=amount(str(hard)),
            used=amount(str(used.get(name, "0"))),
            wanted=wanted.get(name, Decimal(0)),
        )
        if short.wanted and short.used + short.wanted > short.hard:
            yield short


def _raising(short: Sequence[Shortage], namespace: str) -> Iterator[str]:
    for quota in dict.fromkeys(each.quota for each in short):
        hard = {each.name: _written(each.name, each.used + each.wanted) for each in short if each.quota == quota}
        patch = json.dumps({"spec": {"hard": hard}})
        yield f"kubectl -n {namespace} patch resourcequota {quota} --type=merge -p '{patch}'"


def _too_small(evidence: str, nodes: Iterable[Manifest], asked: Mapping[str, Decimal]) -> Finding:
    most = {name: max((_allocatable(node, name) for node in nodes), default=Decimal(0)) for name in asked}
    short = {name: value for name, value in most.items() if value < asked[name]}
    if not short:
        return missing(f"{evidence}, but none has all of it", "ask for less, or add larger nodes")
    lacks = "; ".join(
        f"no node has {_written(name, asked[name])} {name}: the most is {_written(name, value)}"
        for name, value in short.items()
    )
    devices = sorted({name for node in nodes for name in node["status"]["allocatable"] if "/" in name})
    has = f" (nodes advertise {', '.join(devices)})" if devices else ""
    remedy = BRING_DEVICES + has if any("/" in name for name in short) else "ask for less, or add larger nodes"
    return missing(f"{evidence}, but {lacks}", remedy)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _fits(node: Manifest, asked: Mapping[str, Decimal]) -> int:
    """How many such pods, with nothing else there."""
    return min((int(_allocatable(node, name) // value) for name, value in asked.items() if value), default=0)


def _allocatable(node: Manifest, name: str) -> Decimal:
    return amount(str(node["status"]["allocatable"].get(name, "0")))


def _storage(claims: Sequence[Manifest]) -> dict[str, Decimal]:
    wanted = {"persistentvolumeclaims": Decimal(len(claims)), "requests.storage": Decimal(0)}
    for claim in claims:
        size = amount(claim["spec"]["resources"]["requests"]["storage"])
        named = claim["spec"].get("storageClassName")
        keys = ["requests.storage", *([f"{named}.storageclass.storage.k8s.io/requests.storage"] if named else [])]
        for key in keys:
            wanted[key] = wanted.get(key, Decimal(0)) + size
    return {name: value for name, value in wanted.items() if value}


def _described(asked: Mapping[str, Decimal]) -> str:
    return ", ".join(f"{_written(name, value)} {name}" for name, value in asked.items())


def _written(name: str, value: Decimal) -> str:
    """As people write it: memory and storage by the largest power of 1024 that leaves no rest."""
    if name.endswith(("memory", "storage")):
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            factor = amount(f"1{suffix}")
            if value >= factor and value % factor == 0:
                return f"{int(value / factor)}{suffix}"
    if value != value.to_integral_value():
        return f"{int(value * 1000)}m"
    return str(int(value))
