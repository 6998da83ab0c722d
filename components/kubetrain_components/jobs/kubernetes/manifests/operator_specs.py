"""The specs of the training operator's kinds: PyTorchJob, TFJob, MPIJob and what has nothing but roles."""

from typing import Any

from kubetrain_components.jobs.job import Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.kubernetes.manifests.etcd import rendezvous_of
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template, rendezvous_port
from kubetrain_components.manifest import Manifest


def pytorch_job(job: Job, instance: str) -> Manifest:
    from kubeflow.training import models

    return _serialized(
        models.KubeflowOrgV1PyTorchJobSpec(
            pytorch_replica_specs=_replicas(job),
            run_policy=_run_policy(job),
            nproc_per_node=str(job.processes_per_replica),  # the default, auto, counts a node's CPUs
            elastic_policy=_elastic_policy(job, job.elastic, instance) if job.elastic else None,
        )
    )


def tf_job(job: Job) -> Manifest:
    from kubeflow.training import models

    # By default, the success of the Chief or worker-0 alone makes the job succeed.
    return _serialized(
        models.KubeflowOrgV1TFJobSpec(
            tf_replica_specs=_replicas(job), run_policy=_run_policy(job), success_policy="AllWorkers"
        )
    )


def mpi_job(job: Job) -> Manifest:
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


def command_job(job: Job) -> Manifest:
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
    """Let mpirun reach the Workers through the cluster's API.

    The operator permits this to the pod's account, or to one that it creates if the pod has none.
    """
    return {"automountServiceAccountToken": True} if job.lead_decides and replica.role == job.lead_role else {}


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
        ttl_seconds_after_finished=None if replaces_pods(job.replicas) else placement.ttl_seconds or None,
        suspend=True if placement.scheduler == "kueue" else None,  # until Kueue admits it
        scheduling_policy=_scheduling_policy(job),
    )


def replaces_pods(replicas: tuple[Replica, ...]) -> bool:
    return any(replica.restart_policy is RestartPolicy.EXIT_CODE for replica in replicas)


def _scheduling_policy(job: Job) -> Any:
    from kubeflow.training import models

    placement = job.placement
    if placement.scheduler not in ("volcano", "scheduler-plugins"):
        return None
    return models.KubeflowOrgV1SchedulingPolicy(
        min_available=job.elastic.min_replicas if job.elastic else job.total_replicas,
        queue=placement.queue or None,
        priority_class=placement.spec.get("priorityClassName"),
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
