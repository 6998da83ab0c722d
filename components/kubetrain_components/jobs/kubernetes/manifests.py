"""A Job as what a cluster runs: PyTorchJob, TFJob or batch Job. Pure functions, whose results print, diff and test."""

from typing import Any

from kubetrain_components.jobs.job import MANAGED_BY, Elastic, Job, JobKind, Replica, RestartPolicy
from kubetrain_components.jobs.kubernetes.pod_template import pod_template, queue_label, rendezvous_port
from kubetrain_components.jobs.kubernetes.validation import validate_for_operator
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest


def job_manifest(job: Job, owner: Manifest | None = None) -> Manifest:
    """What to create.

    Args:
        owner: The reference to whatever the job is to end with: the Workflow of a run.

    Raises:
        InvalidSetting: for what the cluster would not run as it is meant.
    """
    validate_for_operator(job)
    made = _batch_job(job) if job.kind is JobKind.BATCH_JOB else _training_job(job)
    return {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "metadata": {
            "name": job.identity.name,
            "labels": {**MANAGED_BY, **queue_label(job.placement), **job.labels},
            "annotations": job.identity.annotations(),
            **({"ownerReferences": [owner]} if owner else {}),
        },
        "spec": made["spec"],
    }


def _training_job(job: Job) -> Manifest:
    from kubeflow.training import models
    from kubernetes.client import ApiClient

    replicas = {
        replica.role: models.KubeflowOrgV1ReplicaSpec(
            replicas=replica.count,
            restart_policy=replica.restart_policy.value,
            template=pod_template(job, replica),
        )
        for replica in job.replicas
    }
    if job.kind is JobKind.TF_JOB:
        # By default the Chief's or worker-0's end alone would make the job a success.
        spec = models.KubeflowOrgV1TFJobSpec(
            tf_replica_specs=replicas, run_policy=_run_policy(job), success_policy="AllWorkers"
        )
        made = models.KubeflowOrgV1TFJob(api_version="kubeflow.org/v1", kind=job.kind.value, spec=spec)
    else:
        spec = models.KubeflowOrgV1PyTorchJobSpec(
            pytorch_replica_specs=replicas,
            run_policy=_run_policy(job),
            nproc_per_node=str(job.processes_per_replica),  # the default, auto, counts a node's CPUs
            elastic_policy=_elastic_policy(job, job.elastic) if job.elastic else None,
        )
        made = models.KubeflowOrgV1PyTorchJob(api_version="kubeflow.org/v1", kind=job.kind.value, spec=spec)
    return dict(ApiClient().sanitize_for_serialization(made))


def _run_policy(job: Job) -> Any:
    from kubeflow.training import models

    placement = job.placement
    return models.KubeflowOrgV1RunPolicy(
        # The operator would take pods, their logs and the evidence away; what is to be cleaned is, after the verdict.
        clean_pod_policy="None",
        # The operator stops counting here when it replaces pods itself.
        backoff_limit=None if _replaces_pods(job.replicas) else job.backoff_limit,
        active_deadline_seconds=_deadline(placement),
        # Without a completion time, which a permanent failure under ExitCode lacks, it would fail to clean for ever.
        ttl_seconds_after_finished=None if _replaces_pods(job.replicas) else placement.ttl_seconds or None,
        suspend=True if placement.scheduler == "kueue" else None,  # until Kueue admits it
        scheduling_policy=_scheduling_policy(job),
    )


def _deadline(placement: Placement) -> int | None:
    """For a job that nobody follows any more: whoever does counts the time that its pods run, not that of the start."""
    return placement.start_seconds + placement.deadline_seconds if placement.deadline_seconds else None


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


def _elastic_policy(job: Job, elastic: Elastic) -> Any:
    from kubeflow.training import models

    return models.KubeflowOrgV1ElasticPolicy(
        min_replicas=elastic.min_replicas,
        max_replicas=elastic.max_replicas,
        rdzv_backend=elastic.rdzv_backend,
        rdzv_port=rendezvous_port(job, job.lead_role),
        rdzv_id=elastic.rdzv_id or None,
        rdzv_conf=[models.KubeflowOrgV1RDZVConf(key=key, value=value) for key, value in elastic.rdzv_conf.items()]
        or None,
        max_restarts=elastic.max_restarts,
        metrics=[dict(metric) for metric in elastic.metrics] or None,
    )


def _batch_job(job: Job) -> Manifest:
    placement = job.placement
    (replica,) = job.replicas
    limits = {"activeDeadlineSeconds": _deadline(placement), "ttlSecondsAfterFinished": placement.ttl_seconds}
    return {
        "apiVersion": "batch/v1",
        "kind": job.kind.value,
        "spec": {
            # Here the limit is of new starts; the operator's is of the start that is one too many.
            "backoffLimit": 0 if replica.restart_policy is RestartPolicy.NEVER else max(job.backoff_limit - 1, 0),
            **{name: value for name, value in limits.items() if value},
            **({"suspend": True} if placement.scheduler == "kueue" else {}),
            "template": pod_template(job, replica),
        },
    }
