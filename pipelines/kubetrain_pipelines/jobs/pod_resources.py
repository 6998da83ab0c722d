"""The resources of pods, as the scheduler counts them. Pure functions."""

from collections.abc import Callable
from decimal import Decimal
from operator import add

from kubetrain_components.jobs.quantity import amount
from kubetrain_components.manifest import Manifest

Amounts = dict[str, Decimal]
"""Amounts by the name of the resource."""


def resources_of(spec: Manifest, kind: str = "requests") -> Amounts:
    """Return the requests or limits of a pod with this spec."""
    beside: Amounts = {}
    before: Amounts = {}
    for container in spec.get("initContainers") or []:
        together = merged(add, beside, _amounts(container, kind))
        if container.get("restartPolicy") == "Always":  # a sidecar
            beside = together
        else:
            before = merged(max, before, together)
    for container in spec["containers"]:
        beside = merged(add, beside, _amounts(container, kind))
    return merged(max, before, beside)


def merged(merge: Callable[[Decimal, Decimal], Decimal], one: Amounts, other: Amounts) -> Amounts:
    return {name: merge(one.get(name, Decimal()), other.get(name, Decimal())) for name in one | other}


def parsed(quantities: Manifest) -> Amounts:
    return {name: amount(str(value)) for name, value in quantities.items()}


def _amounts(container: Manifest, kind: str) -> Amounts:
    """Return the requests or limits: what has only a limit requests as much."""
    resources = container.get("resources") or {}
    defaults = (resources.get("limits") or {}) if kind == "requests" else {}
    return parsed({**defaults, **(resources.get(kind) or {})})
