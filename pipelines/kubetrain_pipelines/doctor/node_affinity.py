"""Evaluate the node affinity that a pod requires, as the Kubernetes scheduler does."""

from collections.abc import Mapping
from typing import Any

from kubetrain_components.jobs.kubernetes.manifests.node_choice import ANY_NODE
from kubetrain_components.jobs.shapes import REQUIRED
from kubetrain_components.manifest import Manifest


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
    rules = [(each, labels) for each in term.get("matchExpressions") or []]
    rules += [(each, fields) for each in term.get("matchFields") or []]
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
