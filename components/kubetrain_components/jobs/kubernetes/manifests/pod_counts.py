"""The number of a job's pods, read from its manifest."""

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import NEEDED_ANNOTATION
from kubetrain_components.manifest import Manifest


def replica_specs(kind: JobKind, manifest: Manifest) -> dict[str, Manifest]:
    """Return the number and the template of a job's pods, by role. A TrainJob's template is in its runtime."""
    spec, field = manifest["spec"], kind.traits.replica_specs
    if kind is JobKind.RAY_JOB:
        head, (worker, *others) = spec[field]["headGroupSpec"], spec[field]["workerGroupSpecs"]
        workers = {"replicas": 1 + len(others), "template": worker["template"]}
        submitter = {"replicas": 1, "template": spec["submitterPodTemplate"]}
        return {"Submitter": submitter, "Head": {"replicas": 1, **head}, "Worker": workers}
    if field:
        return spec.get(field) or {}
    return {"Pod": {"replicas": spec.get("completions") or (spec.get("trainer") or {}).get("numNodes", 1), **spec}}


def needed_pods(kind: JobKind, manifest: Manifest) -> int:
    """Return the number of pods that the job needs to be under way."""
    if needed := (manifest["metadata"].get("annotations") or {}).get(NEEDED_ANNOTATION):
        return int(needed)
    if elastic := manifest["spec"].get("elasticPolicy"):
        return int(elastic.get("minReplicas", 1))
    return _total_pods(kind, manifest)


def max_pods(kind: JobKind, manifest: Manifest) -> int:
    """Return the number of pods to which the job may grow."""
    elastic = manifest["spec"].get("elasticPolicy") or {}
    return int(elastic.get("maxReplicas", _total_pods(kind, manifest)))


def _total_pods(kind: JobKind, manifest: Manifest) -> int:
    return sum(int(spec.get("replicas", 1)) for spec in replica_specs(kind, manifest).values())
