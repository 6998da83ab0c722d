"""Reject jobs that the training operator would accept but not run as intended."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubetrain_components.jobs.job import UNBUFFERED, Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import INIT_CONTAINER, JobKind
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import INDEX, variables
from kubetrain_components.jobs.kubernetes.manifests.pod_template import rendezvous_port
from kubetrain_components.jobs.kubernetes.manifests.train_job import names_of_jobs
from kubetrain_components.jobs.kubernetes.manifests.volumes import claim_mounts, claim_volumes
from kubetrain_components.jobs.operator_environment import operator_environment
from kubetrain_components.jobs.pod_patch import MAIN
from kubetrain_trainer.errors import InvalidSetting

MAX_POD_NAME = 63
TF_JOB_PORT = 2222
"""The operator's default."""
MAX_RAY_JOB_NAME = 47
LATE_ATTEMPT = 9
"""An attempt that must be possible when the first one is."""


def validate_for_operator(job: Job) -> None:
    """Reject a job that the operator would not run as intended.

    Raises:
        InvalidSetting: with the first problem and its remedy.
    """
    for problem in _problems(job):
        raise InvalidSetting(f"{job.identity.name}: {problem}")


def _problems(job: Job) -> Iterator[str]:
    yield from _name_problems(job)
    if not job.placement.image:
        yield "the pods have no image: set pods.image"
    yield from _container_problems(job)
    yield from _port_problems(job)
    if job.processes_per_replica < 1:
        yield f"a pod needs at least one process, not {job.processes_per_replica}"
    if any(replica.restart_policy is RestartPolicy.ALWAYS for replica in job.replicas):
        yield "pods.restart_policy Always also restarts pods that succeeded, so the job would never end: use OnFailure"
    if job.kind is JobKind.RAY_JOB:
        yield from _ray_problems(job)
    elif job.lead_decides:
        yield from _mpi_problems(job)
    if job.is_indexed:
        yield from _indexed_problems(job)
    elif job.kind is JobKind.BATCH_JOB:
        yield from _batch_problems(job)
        return
    else:
        yield from _role_problems(job)
    yield from _elastic_problems(job, job.elastic) if job.elastic else _static_problems(job)
    yield from _environment_problems(job)


def _name_problems(job: Job) -> Iterator[str]:
    if not re.match("[a-z]", job.identity.name):
        yield "names of its pods' services must begin with a letter: begin the pipeline's name with a letter"
    longest = max(_pod_names(job), key=len)
    if len(longest) > MAX_POD_NAME:
        yield f"pod name {longest} has more than {MAX_POD_NAME} characters: shorten the name of the pipeline"


def _pod_names(job: Job) -> list[str]:
    """Return the longest name of each role."""
    highest = job.elastic.max_replicas if job.elastic else 0
    if job.kind is JobKind.TRAIN_JOB:  # JobSet counts the random end of the names as well
        names = names_of_jobs(_late(job).name)
        parts = names[1:] if job.lead_decides else names[:1]
        return [f"{part}-{job.total_replicas - 1}-xxxxx" for part in parts]
    return [f"{job.identity.name}-{role.lower()}-{max(count, highest) - 1}" for role, count in job.roles.items()]


def _late(job: Job) -> JobIdentity:
    return replace(job.identity, attempt=max(job.identity.attempt, LATE_ATTEMPT))


def _container_problems(job: Job) -> Iterator[str]:
    """Yield what a pod patch would change of the job's own."""
    spec, own = job.placement.spec, [job.kind.traits.container]
    own += [INIT_CONTAINER] if job.kind is JobKind.PYTORCH_JOB else []
    for name in _names(spec, "initContainers", "containers"):
        if name in own and name != MAIN:
            yield f"the job has a container '{name}' itself: rename yours in pods.pod, or name the one that trains main"
    for name in _repeated(_names(spec, "initContainers", "containers")):
        yield f"two containers of pods.pod have the name '{name}': rename one of them"
    for name in _repeated([*(volume["name"] for volume in claim_volumes(job)), *_names(spec, "volumes")]):
        yield f"two volumes of a pod have the name '{name}': rename yours in pods.pod"
    mounts = [*claim_mounts(job), *(job.placement.main.get("volumeMounts") or [])]
    for path in _repeated([str(mount["mountPath"]).rstrip("/") for mount in mounts]):
        yield f"two volumes of a pod are mounted at {path}: mount yours elsewhere in pods.pod"
    for name in _repeated(_names(spec, "resourceClaims")):
        yield f"two resourceClaims have the name '{name}': rename one of them"


def _names(spec: Mapping[str, Any], *fields: str) -> list[str]:
    return [str(item["name"]) for field in fields for item in spec.get(field) or []]


def _port_problems(job: Job) -> Iterator[str]:
    has_operators_port = job.kind is JobKind.TF_JOB and not job.placement.host_network
    port = TF_JOB_PORT if has_operators_port else rendezvous_port(job, job.lead_role)
    if job.metrics_port == port:
        yield (
            f"train.metrics_port is {port}, by which the pods find each other: set train.metrics_port to another port "
            "or to 0"
        )


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _batch_problems(job: Job) -> Iterator[str]:
    if job.total_replicas != 1:
        yield f"a batch Job has one pod, not {job.total_replicas}"
    if job.replicas[0].restart_policy is RestartPolicy.EXIT_CODE:
        yield "a batch Job does not support pods.restart_policy ExitCode: use OnFailure or Never"


def _indexed_problems(job: Job) -> Iterator[str]:
    if job.lead_decides and job.kind is JobKind.BATCH_JOB:
        yield "nothing gives mpirun access to the other pods of a Job: use pods.launcher=training-operator or trainer"
    if job.placement.scheduler in ("volcano", "scheduler-plugins"):
        scheduler = job.placement.scheduler
        yield f"{scheduler} does not start a {job.kind} as a gang: use kueue, or pods.launcher=training-operator"
    if job.placement.scale_metrics:
        yield f"nothing scales a {job.kind}: remove pods.scale_metrics, or use pods.launcher=training-operator"


def _mpi_problems(job: Job) -> Iterator[str]:
    placement = job.placement
    if any(replica.restart_policy is RestartPolicy.EXIT_CODE for replica in job.replicas):
        yield "mpirun also exits with code 1 when it loses a Worker, so ExitCode cannot tell: use OnFailure or Never"
    if placement.scheduler == "kueue" and job.kind is JobKind.MPI_JOB:
        yield (
            "Kueue manages only the MPIJobs of MPI Operator 2: use pods.launcher=trainer, or remove pods.scheduler and "
            "pods.queue"
        )
    if placement.host_network and job.kind is JobKind.TRAIN_JOB:
        yield "the SSH servers of two jobs would have one port of a node: remove pods.host_network"
    if placement.rdma and job.kind is JobKind.TRAIN_JOB:
        yield "an SSH server of root cannot log in mpiuser: request the devices in pods.pod instead of pods.rdma"


def _ray_problems(job: Job) -> Iterator[str]:
    placement, other = job.placement, "use pods.launcher=training-operator, trainer or job"
    if len(_late(job).name) > MAX_RAY_JOB_NAME:
        yield f"the name of a RayJob has at most {MAX_RAY_JOB_NAME} characters: shorten the name of the pipeline"
    if placement.host_network:
        yield f"Ray's ports are the same in every pod, so that two cannot share a node's network: {other}"
    if placement.scheduler:
        yield f"kubetrain does not queue a RayJob, and nothing starts it as a gang: remove pods.scheduler, or {other}"


def _role_problems(job: Job) -> Iterator[str]:
    if len(job.roles) < len(job.replicas):
        yield "a role is given twice, but the operator would use only one of them: give each role once"
    known, lead = job.kind.traits.roles, job.kind.traits.lead_role
    for role in job.roles:
        if role not in known:
            yield f"a {job.kind} cannot have the role '{role}': use {', '.join(sorted(known))}"
    if len(known) > 1 and job.roles.get(lead, 1) != 1:
        yield f"a job has one {lead}, not {job.roles[lead]}: increase the number of Workers"


def _static_problems(job: Job) -> Iterator[str]:
    lead = job.kind.traits.lead_role
    if job.kind.traits.requires_lead and lead not in job.roles:
        yield f"Workers cannot find each other without a {lead} or an elastic policy: add one of them"
    if job.placement.scale_metrics:
        yield "pods.scale_metrics apply only to elastic jobs: set pods.min_workers, or remove pods.scale_metrics"
    if job.placement.rendezvous and job.is_training:
        yield (
            "pods.rendezvous applies only to elastic jobs, because others know their number and first pod: "
            f"{_or_elastic(job)}remove it"
        )


def _or_elastic(job: Job) -> str:
    can_be_elastic = job.kind.traits.can_be_elastic and job.trains_with == "pytorch"
    return "set pods.min_workers, or " if can_be_elastic else ""


def _elastic_problems(job: Job, elastic: Elastic) -> Iterator[str]:
    if not job.kind.traits.can_be_elastic:
        yield f"a {job.kind} cannot be elastic: remove pods.min_workers"
    if "Master" in job.roles:
        yield "an elastic job does not count a Master among its nodes: use only Workers"
    if not 1 <= elastic.min_replicas <= elastic.max_replicas:
        yield (
            f"min_replicas {elastic.min_replicas} must be between 1 and max_replicas {elastic.max_replicas}: "
            "otherwise there are never enough pods"
        )
    workers = job.roles["Worker"]
    if not elastic.min_replicas <= workers <= elastic.max_replicas:
        yield f"the number of Workers must be between {elastic.min_replicas} and {elastic.max_replicas}, not {workers}"
    if (
        job.placement.scheduler == "kueue"
        and not job.is_indexed
        and (workers < elastic.max_replicas or elastic.metrics)
    ):
        yield (
            f"Kueue stops a {job.kind} whose number of pods changes: remove pods.max_workers and pods.scale_metrics, "
            "or use pods.launcher=trainer or job"
        )
    if elastic.rdzv_backend != "c10d":
        yield f"rdzv_backend '{elastic.rdzv_backend}' needs a server: set it in pods.rendezvous, which accepts etcd-v2"
    if any(not key or not value or re.search("[,=]", key + value) for key, value in elastic.rdzv_conf.items()):
        yield "torchrun reads rendezvous as key=value,key=value: remove entries that are empty or contain , or ="
    if any(replica.restart_policy is not RestartPolicy.ON_FAILURE for replica in job.replicas):
        # An agent that loses a peer exits with code 1, which ExitCode treats as a permanent failure.
        yield "an elastic job needs pods.restart_policy OnFailure: under any other, the loss of worker-0 fails the job"


def _environment_problems(job: Job) -> Iterator[str]:
    """Yield variables that are overridden: the last one of a name takes effect."""
    for replica in job.replicas:
        for name in sorted(_injected(job, replica) & {*replica.env, *job.placement.env, *job.placement.secret_env}):
            setter = "launcher" if job.is_indexed else "operator"
            yield f"{name} is set by the {setter}, which overrides yours: remove it from pods.env"


def _injected(job: Job, replica: Replica) -> set[str]:
    if job.is_indexed:
        return {INDEX, *variables(job, str)}
    return set(operator_environment(job, replica.role, 0, lambda role, index: ("", 0))) - set(UNBUFFERED)
