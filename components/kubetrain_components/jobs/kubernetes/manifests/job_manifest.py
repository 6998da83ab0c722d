"""The Kubernetes manifests of jobs: PyTorchJob, TFJob, TrainJob, batch Job or RayJob. Pure functions."""

from kubetrain_components.jobs.annotations import (
    KUEUE_LABEL,
    LABEL_PREFIX,
    MANAGED_BY,
    SECONDS_RUNNING_ANNOTATION,
    TTL_ANNOTATION,
)
from kubetrain_components.jobs.avoided_nodes import as_annotation
from kubetrain_components.jobs.job import Job, RestartPolicy
from kubetrain_components.jobs.job_kinds import TRAINER_API, JobKind
from kubetrain_components.jobs.kubernetes.manifests.etcd import etcd_label, etcd_manifest, etcd_service, has_own_etcd
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import (
    NEEDED_ANNOTATION,
    NEEDS_FIRST_ANNOTATION,
    indexed_job,
    instance_label,
    service,
)
from kubetrain_components.jobs.kubernetes.manifests.operator_specs import (
    command_job,
    mpi_job,
    pytorch_job,
    replaces_pods,
    tf_job,
)
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.jobs.kubernetes.manifests.ray_job import ray_job
from kubetrain_components.jobs.kubernetes.manifests.train_job import runtime, train_job
from kubetrain_components.jobs.kubernetes.manifests.validation import validate_for_operator
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest import Manifest, without_empty

UNKNOWN_INSTANCE = "0" * 8


def manifests_of(job: Job) -> list[Manifest]:
    """Return everything that is created for a job, in this order, with zeros for what is random."""
    instance = UNKNOWN_INSTANCE if needs_instance(job) else ""
    manifest = job_manifest(job, instance=instance)
    companion, etcd = companion_manifest(job, None, instance), own_etcd_manifest(job, None, instance)
    return [*([companion] if companion else []), *([etcd, etcd_service(etcd)] if etcd else []), manifest]


def needs_instance(job: Job) -> bool:
    """Return True if one creation of the job must differ from another of the same name."""
    return bool(job.framework) or job.meets_in_etcd


def job_manifest(job: Job, owner: Manifest | None = None, instance: str = "") -> Manifest:
    """Return the manifest to create.

    Args:
        owner: Reference to the Workflow of a run, with which the cluster deletes the job.
        instance: Random name of this creation, by which its pods are told from those of a job of the same name.

    Raises:
        InvalidSetting: if the cluster would not run the job as intended.
    """
    validate_for_operator(job)
    return {
        "apiVersion": job.kind.traits.api_version,
        "kind": job.kind.value,
        "metadata": {
            "name": job.identity.name,
            "labels": {
                **MANAGED_BY,
                **_queue(job),
                **job.labels,
                **(instance_label(instance) if job.framework else {}),
                **etcd_label(job, instance),
            },
            "annotations": {
                **job.identity.annotations(),
                **_launcher(job),
                **_needed(job),
                **_time_to_live(job),
                **as_annotation(job.avoided_nodes),
                **without_empty({SECONDS_RUNNING_ANNOTATION: job.seconds_running}),
            },
            **_owned_by(owner),
        },
        "spec": _spec(job, instance),
    }


def companion_manifest(job: Job, owner: Manifest | None, instance: str) -> Manifest | None:
    """Return the object to create before the job; None if the job needs none.

    Raises:
        InvalidSetting: if the cluster would not run the job as intended.
    """
    if not job.is_indexed:
        return None
    validate_for_operator(job)
    companion = runtime(job, instance) if job.kind is JobKind.TRAIN_JOB else service(job, instance)
    labels = {**MANAGED_BY, **job.labels, **instance_label(instance)}
    companion["metadata"] |= {"labels": labels, **_owned_by(owner)}
    return companion


def own_etcd_manifest(job: Job, owner: Manifest | None, instance: str) -> Manifest | None:
    """Return the etcd to create before the job; None if it needs none of its own.

    Raises:
        InvalidSetting: if the cluster would not run the job as intended.
    """
    if not has_own_etcd(job):
        return None
    validate_for_operator(job)
    etcd = etcd_manifest(job, instance)
    etcd["metadata"] |= _owned_by(owner)
    return etcd


def companion_resource(kind: JobKind) -> tuple[str, str]:
    return (TRAINER_API, "trainingruntimes") if kind is JobKind.TRAIN_JOB else ("v1", "services")


def _owned_by(owner: Manifest | None) -> Manifest:
    return {"ownerReferences": [owner]} if owner else {}


def _queue(job: Job) -> dict[str, str]:
    return {KUEUE_LABEL: job.placement.queue} if job.placement.scheduler == "kueue" else {}


def _launcher(job: Job) -> dict[str, str]:
    return {LABEL_PREFIX + "launcher": Launcher.of(job.kind).value} if job.is_training else {}


def _needed(job: Job) -> dict[str, str]:
    """Return the annotations that say which pods must have started, as far as the spec does not."""
    needed = job.elastic.min_replicas if job.elastic else job.total_replicas
    return {
        **({NEEDED_ANNOTATION: str(needed)} if job.framework else {}),
        **({NEEDS_FIRST_ANNOTATION: "false"} if job.meets_in_etcd else {}),
    }


def _time_to_live(job: Job) -> dict[str, str]:
    """Return the annotation with which the reaper deletes a finished job that has no time to live of its own."""
    is_kept = job.kind in (JobKind.TRAIN_JOB, JobKind.RAY_JOB) or (
        job.kind is not JobKind.BATCH_JOB and replaces_pods(job.replicas)
    )
    seconds = job.placement.ttl_seconds
    return {TTL_ANNOTATION: str(seconds)} if is_kept and seconds else {}


def _spec(job: Job, instance: str) -> Manifest:  # noqa: PLR0911 - one for each kind
    match job.kind:
        case JobKind.PYTORCH_JOB:
            return pytorch_job(job, instance)
        case JobKind.TF_JOB:
            return tf_job(job)
        case JobKind.MPI_JOB:
            return mpi_job(job)
        case JobKind.XGBOOST_JOB | JobKind.PADDLE_JOB | JobKind.JAX_JOB:
            return command_job(job)
        case JobKind.TRAIN_JOB:
            return train_job(job, instance)
        case JobKind.BATCH_JOB:
            return indexed_job(job, instance) if job.is_indexed else _batch_job(job)
        case JobKind.RAY_JOB:
            return ray_job(job, instance)


def _batch_job(job: Job) -> Manifest:
    placement = job.placement
    (replica,) = job.replicas
    return {
        # A batch Job allows this many restarts; the operator would fail the job at the last of them.
        "backoffLimit": 0 if replica.restart_policy is RestartPolicy.NEVER else max(job.backoff_limit - 1, 0),
        **({"ttlSecondsAfterFinished": placement.ttl_seconds} if placement.ttl_seconds else {}),
        **({"suspend": True} if placement.scheduler == "kueue" else {}),
        "template": pod_template(job, replica, spec={"restartPolicy": "Never"}),
    }
