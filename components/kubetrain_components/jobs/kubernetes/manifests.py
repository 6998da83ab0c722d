"""The Kubernetes manifests of jobs: PyTorchJob, TFJob, TrainJob or batch Job. Pure functions."""

from typing import Any

from kubetrain_components.jobs.annotations import LABEL_PREFIX, MANAGED_BY, TTL_ANNOTATION
from kubetrain_components.jobs.avoided_nodes import as_annotation
from kubetrain_components.jobs.job import Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_kinds import TRAINER_API, JobKind
from kubetrain_components.jobs.kubernetes.etcd import (
    etcd_label,
    etcd_manifest,
    etcd_service,
    has_own_etcd,
    rendezvous_of,
)
from kubetrain_components.jobs.kubernetes.indexed_job import (
    NEEDED_ANNOTATION,
    NEEDS_FIRST_ANNOTATION,
    indexed_job,
    instance_label,
    service,
)
from kubetrain_components.jobs.kubernetes.pod_template import pod_template, queue_label, rendezvous_port
from kubetrain_components.jobs.kubernetes.train_job import runtime, train_job
from kubetrain_components.jobs.kubernetes.validation import validate_for_operator
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest import Manifest

UNKNOWN_INSTANCE = "0" * 8


def manifests_of(job: Job) -> list[Manifest]:
    """Return everything that is created for a job, in this order, with zeros for what is random."""
    instance = UNKNOWN_INSTANCE if needs_instance(job) else ""
    manifest = job_manifest(job, instance=instance)
    companion, etcd = companion_manifest(job, None, instance), own_etcd_manifest(job, None, instance)
    return [*([companion] if companion else []), *([etcd, etcd_service(etcd)] if etcd else []), manifest]


def needs_instance(job: Job) -> bool:
    """Return True if one creation of the job must differ from another of the same name."""
    return job.is_indexed or job.meets_in_etcd


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
                **queue_label(job.placement),
                **job.labels,
                **(instance_label(instance) if job.is_indexed else {}),
                **etcd_label(job, instance),
            },
            "annotations": {
                **job.identity.annotations(),
                **_launcher(job),
                **_needed(job),
                **_time_to_live(job),
                **as_annotation(job.avoided_nodes),
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


def _launcher(job: Job) -> dict[str, str]:
    return {LABEL_PREFIX + "launcher": Launcher.of(job.kind).value} if job.is_training else {}


def _needed(job: Job) -> dict[str, str]:
    """Return the annotations that say which pods must have started, as far as the spec does not."""
    needed = job.elastic.min_replicas if job.elastic else job.total_replicas
    return {
        **({NEEDED_ANNOTATION: str(needed)} if job.is_indexed else {}),
        **({NEEDS_FIRST_ANNOTATION: "false"} if job.meets_in_etcd else {}),
    }


def _time_to_live(job: Job) -> dict[str, str]:
    """Return the annotation with which the reaper deletes a finished job that has no time to live of its own."""
    is_kept = job.kind is JobKind.TRAIN_JOB or (job.kind is not JobKind.BATCH_JOB and _replaces_pods(job.replicas))
    seconds = job.placement.ttl_seconds
    return {TTL_ANNOTATION: str(seconds)} if is_kept and seconds else {}


def replica_specs(kind: JobKind, manifest: Manifest) -> dict[str, Manifest]:
    """Return the number and the template of a job's pods, by role. A TrainJob's template is in its runtime."""
    spec, field = manifest["spec"], kind.traits.replica_specs
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
    return sum(int(each.get("replicas", 1)) for each in replica_specs(kind, manifest).values())


def _spec(job: Job, instance: str) -> Manifest:
    match job.kind:
        case JobKind.PYTORCH_JOB:
            return _pytorch_job(job, instance)
        case JobKind.TF_JOB:
            return _tf_job(job)
        case JobKind.MPI_JOB:
            return _mpi_job(job)
        case JobKind.XGBOOST_JOB | JobKind.PADDLE_JOB | JobKind.JAX_JOB:
            return _command_job(job)
        case JobKind.TRAIN_JOB:
            return train_job(job, instance)
        case JobKind.BATCH_JOB:
            return indexed_job(job, instance) if job.is_indexed else _batch_job(job)


def _pytorch_job(job: Job, instance: str) -> Manifest:
    from kubeflow.training import models

    return _serialized(
        models.KubeflowOrgV1PyTorchJobSpec(
            pytorch_replica_specs=_replicas(job),
            run_policy=_run_policy(job),
            nproc_per_node=str(job.processes_per_replica),  # the default, auto, counts a node's CPUs
            elastic_policy=_elastic_policy(job, job.elastic, instance) if job.elastic else None,
        )
    )


def _tf_job(job: Job) -> Manifest:
    from kubeflow.training import models

    # By default, the success of the Chief or worker-0 alone makes the job succeed.
    return _serialized(
        models.KubeflowOrgV1TFJobSpec(
            tf_replica_specs=_replicas(job), run_policy=_run_policy(job), success_policy="AllWorkers"
        )
    )


def _mpi_job(job: Job) -> Manifest:
    from kubeflow.training import models

    run_policy = _run_policy(job)
    run_policy.clean_pod_policy = "Running"  # the Workers, which would wait for another mpirun
    return _serialized(
        models.KubeflowOrgV1MPIJobSpec(
            mpi_replica_specs=_replicas(job),
            run_policy=run_policy,
            slots_per_worker=job.processes_per_replica,
            main_container=job.kind.traits.container,
        )
    )


def _command_job(job: Job) -> Manifest:
    """Return the spec of a kind that has nothing but roles and a policy."""
    return _serialized({job.kind.traits.replica_specs: _replicas(job), "runPolicy": _run_policy(job)})


def _serialized(spec: Any) -> Manifest:
    from kubernetes.client import ApiClient

    return dict(ApiClient().sanitize_for_serialization(spec))


def _replicas(job: Job) -> dict[str, Any]:
    from kubeflow.training import models

    return {
        replica.role: models.KubeflowOrgV1ReplicaSpec(
            replicas=replica.count,
            restart_policy=replica.restart_policy.value,
            template=pod_template(job, replica, spec=_access(job, replica)),
        )
        for replica in job.replicas
    }


def _access(job: Job, replica: Replica) -> Manifest:
    """Let mpirun reach the Workers through the cluster's API, as the account that the operator creates for it."""
    if not (job.lead_decides and replica.role == job.lead_role):
        return {}
    return {"serviceAccountName": "", "automountServiceAccountToken": True}


def _run_policy(job: Job) -> Any:
    from kubeflow.training import models

    placement = job.placement
    return models.KubeflowOrgV1RunPolicy(
        # The launcher deletes pods after its verdict, for which it needs them and their logs.
        clean_pod_policy="None",
        # No active_deadline_seconds: it would include the time that pods waited, also for a replacement. The launcher
        # counts deadline_seconds.
        # The operator also counts restarts that follow a lost node, over the job's whole life: the launcher counts.
        backoff_limit=None,
        # Under ExitCode, a permanent failure sets no completion time, without which the operator's cleanup fails: the
        # reaper deletes the job.
        ttl_seconds_after_finished=None if _replaces_pods(job.replicas) else placement.ttl_seconds or None,
        suspend=True if placement.scheduler == "kueue" else None,  # until Kueue admits it
        scheduling_policy=_scheduling_policy(job),
    )


def _replaces_pods(replicas: tuple[Replica, ...]) -> bool:
    return any(replica.restart_policy is RestartPolicy.EXIT_CODE for replica in replicas)


def _scheduling_policy(job: Job) -> Any:
    from kubeflow.training import models

    placement = job.placement
    if placement.scheduler not in ("volcano", "scheduler-plugins"):
        return None
    return models.KubeflowOrgV1SchedulingPolicy(
        min_available=job.elastic.min_replicas if job.elastic else job.total_replicas,
        queue=placement.queue or None,
        priority_class=placement.priority_class or None,
        schedule_timeout_seconds=placement.start_seconds if placement.scheduler == "scheduler-plugins" else None,
    )


def _elastic_policy(job: Job, elastic: Elastic, instance: str) -> Any:
    from kubeflow.training import models

    elastic, (host, port) = rendezvous_of(job, elastic, ("", rendezvous_port(job, job.lead_role)), instance)
    return models.KubeflowOrgV1ElasticPolicy(
        min_replicas=elastic.min_replicas,
        max_replicas=elastic.max_replicas,
        rdzv_backend=elastic.rdzv_backend,
        rdzv_host=host or None,  # the first Worker
        rdzv_port=port,
        rdzv_id=elastic.rdzv_id or None,
        rdzv_conf=[models.KubeflowOrgV1RDZVConf(key=key, value=value) for key, value in elastic.rdzv_conf.items()]
        or None,
        max_restarts=elastic.max_restarts,
        metrics=[dict(metric) for metric in elastic.metrics] or None,
    )


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
