"""On which nodes pods run: spot nodes, healthy ones, near each other."""

from kubetrain_components.jobs.annotations import RUN_ID, STAGE
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_checks import REQUIRED
from kubetrain_components.manifest import Manifest, without_empty

SPOT: dict[str, tuple[dict[str, str], str]] = {
    "gke": ({"cloud.google.com/gke-spot": "true"}, "cloud.google.com/gke-spot"),
    "eks": ({"eks.amazonaws.com/capacityType": "SPOT"}, ""),
    "aks": ({"kubernetes.azure.com/scalesetpriority": "spot"}, "kubernetes.azure.com/scalesetpriority"),
    "karpenter": ({"karpenter.sh/capacity-type": "spot"}, ""),
}
"""The labels of each platform's spot nodes, and the key of their taint, if they have one."""
ZONE = "topology.kubernetes.io/zone"
ANY_NODE = "kubernetes.io/os"
"""A label with one value on all nodes that run these pods."""


def spot_labels(placement: Placement) -> dict[str, str]:
    return dict(SPOT[placement.spot][0]) if placement.spot else {}


def spot_tolerations(placement: Placement) -> list[Manifest]:
    if not placement.spot or not (key := SPOT[placement.spot][1]):
        return []
    return [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]


def spread_constraints(job: Job) -> list[Manifest]:
    given = job.placement.spec.get("topologySpreadConstraints") or []
    return [{"labelSelector": _own_pods(job), **constraint} for constraint in given]


def affinity(job: Job) -> Manifest:
    given = job.placement.spec.get("affinity") or {}
    parts = {"nodeAffinity": _node_affinity(job, given), "podAffinity": _pod_affinity(job, given)}
    return {**given, **without_empty(parts)}


def _node_affinity(job: Job, given: Manifest) -> Manifest:
    """Return the user's node affinity without the nodes to avoid: a node must match one of the terms as a whole."""
    nodes = given.get("nodeAffinity") or {}
    if not job.avoided_nodes:
        return nodes
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in job.avoided_nodes]
    terms = (nodes.get(REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    elsewhere = [{**term, "matchFields": [*(term.get("matchFields") or []), *others]} for term in terms]
    return {**nodes, REQUIRED: {"nodeSelectorTerms": elsewhere}}


def _pod_affinity(job: Job, given: Manifest) -> Manifest:
    pods = given.get("podAffinity") or {}
    required = pods.get(REQUIRED) or []
    terms = [*_near_each_other(job), *([] if required else _after_the_first(job))]
    return {**pods, REQUIRED: [*required, *terms]} if terms else pods


def _near_each_other(job: Job) -> list[Manifest]:
    if not (key := job.placement.together):
        return []
    return [{"labelSelector": _own_pods(job), "topologyKey": ZONE if key == "zone" else key}]


def _after_the_first(job: Job) -> list[Manifest]:
    """Keep pods that an elastic job can do without from taking the room of its first pod, where the others meet.

    Kubernetes lets the first pod pass, because it is the only one that matches the term itself. Gang schedulers and
    Kueue admit pods together, and a pod with a term of the user's would have to match both with one pod.
    """
    has_spare_pods = job.elastic is not None and job.elastic.min_replicas < job.elastic.max_replicas
    if not has_spare_pods or job.meets_in_etcd or job.placement.scheduler:
        return []
    first = {"matchLabels": {**_own_pods(job)["matchLabels"], job.kind.traits.index_label: "0"}}
    return [{"labelSelector": first, "topologyKey": ANY_NODE}]


def _own_pods(job: Job) -> Manifest:
    return {"matchLabels": {name: job.labels[name] for name in (RUN_ID, STAGE)}}
