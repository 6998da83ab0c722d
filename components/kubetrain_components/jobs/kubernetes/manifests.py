"""The Kubernetes manifests of jobs: PyTorchJob, TFJob or batch Job. Pure functions."""

from kubetrain_components.jobs.job import MANAGED_BY, Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.pod_template import pod_template, queue_label, rendezvous_port
from kubetrain_components.jobs.kubernetes.validation import validate_for_operator
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest


def job_manifest(job: Job, owner: Manifest | None = None) -> Manifest:
    """Return the manifest to create.

    Args:
        owner: Reference to the Workflow of a run, with which the cluster deletes the job.

    Raises:
        InvalidSetting: if the cluster would not run the job as intended.
    """
    validate_for_operator(job)
    return {
        "apiVersion": job.kind.traits.api_version,
        "kind": job.kind.value,
        "metadata": {
            "name": job.identity.name,
            "labels": {**MANAGED_BY, **queue_label(job.placement), **job.labels},
            "annotations": job.identity.annotations(),
            **({"ownerReferences": [owner]} if owner else {}),
        },
        "spec": _spec(job),
    }


def replica_specs(kind: JobKind, manifest: Manifest) -> dict[str, Manifest]:
    """Return the number and the template of a job's pods, by role."""
    field = kind.traits.replica_specs
    return manifest["spec"].get(field) or {} if field else {"Pod": manifest["spec"]}


def _spec(job: Job) -> Manifest:
    match job.kind:
        case JobKind.PYTORCH_JOB:
            return _pytorch_job(job)
        case JobKind.TF_JOB:
            return _tf_job(job)
        case JobKind.BATCH_JOB:
            return _batch_job(job)


def _pytorch_job(job: Job) -> Manifest:
    return {
        "pytorchReplicaSpecs": _replicas(job),
        "runPolicy": _run_policy(job),
        "nprocPerNode": str(job.processes_per_replica),  # the default, auto, counts a node's CPUs
        **({"elasticPolicy": _elastic_policy(job, job.elastic)} if job.elastic else {}),
    }


def _tf_job(job: Job) -> Manifest:
    # By default, the success of the Chief or worker-0 alone makes the job succeed.
    return {"tfReplicaSpecs": _replicas(job), "runPolicy": _run_policy(job), "successPolicy": "AllWorkers"}


def _replicas(job: Job) -> Manifest:
    return {
        replica.role: {
            "replicas": replica.count,
            "restartPolicy": replica.restart_policy.value,
            "template": pod_template(job, replica),
        }
        for replica in job.replicas
    }


def _run_policy(job: Job) -> Manifest:
    placement = job.placement
    return _without_none(
        {
            # The launcher deletes pods after its verdict, for which it needs them and their logs.
            "cleanPodPolicy": "None",
            # If the operator replaces pods itself, it does not count their restarts.
            "backoffLimit": None if _replaces_pods(job.replicas) else job.backoff_limit,
            "activeDeadlineSeconds": _deadline(placement),
            # Under ExitCode, a permanent failure sets no completion time, without which the operator's cleanup fails.
            "ttlSecondsAfterFinished": None if _replaces_pods(job.replicas) else placement.ttl_seconds or None,
            "suspend": True if placement.scheduler == "kueue" else None,  # until Kueue admits it
            "schedulingPolicy": _scheduling_policy(job),
        }
    )


def _deadline(placement: Placement) -> int | None:
    """Limit a job that has lost its launcher; the launcher itself counts only the time after the start."""
    return placement.start_seconds + placement.deadline_seconds if placement.deadline_seconds else None


def _replaces_pods(replicas: tuple[Replica, ...]) -> bool:
    return any(replica.restart_policy is RestartPolicy.EXIT_CODE for replica in replicas)


def _scheduling_policy(job: Job) -> Manifest | None:
    placement = job.placement
    if placement.scheduler not in ("volcano", "scheduler-plugins"):
        return None
    has_timeout = placement.scheduler == "scheduler-plugins"
    return _without_none(
        {
            "minAvailable": job.elastic.min_replicas if job.elastic else job.total_replicas,
            "queue": placement.queue or None,
            "priorityClass": placement.priority_class or None,
            "scheduleTimeoutSeconds": placement.start_seconds if has_timeout else None,
        }
    )


def _elastic_policy(job: Job, elastic: Elastic) -> Manifest:
    return _without_none(
        {
            "minReplicas": elastic.min_replicas,
            "maxReplicas": elastic.max_replicas,
            "rdzvBackend": elastic.rdzv_backend,
            "rdzvPort": rendezvous_port(job, job.lead_role),
            "rdzvId": elastic.rdzv_id or None,
            "rdzvConf": [{"key": key, "value": value} for key, value in elastic.rdzv_conf.items()] or None,
            "maxRestarts": elastic.max_restarts,
            "metrics": [dict(metric) for metric in elastic.metrics] or None,
        }
    )


def _batch_job(job: Job) -> Manifest:
    placement = job.placement
    (replica,) = job.replicas
    limits = {"activeDeadlineSeconds": _deadline(placement), "ttlSecondsAfterFinished": placement.ttl_seconds}
    return {
        # A batch Job allows this many restarts; the operator would fail the job at the last of them.
        "backoffLimit": 0 if replica.restart_policy is RestartPolicy.NEVER else max(job.backoff_limit - 1, 0),
        **{name: value for name, value in limits.items() if value},
        **({"suspend": True} if placement.scheduler == "kueue" else {}),
        "template": pod_template(job, replica),
    }


def _without_none(values: Manifest) -> Manifest:
    return {name: value for name, value in values.items() if value is not None}
