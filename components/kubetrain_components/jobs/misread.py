"""What the training operator takes without a word and then runs otherwise than meant: refused, with the reason."""

from collections.abc import Iterator

from kubetrain_components.jobs.job import Elastic, Job, JobKind, RestartPolicy
from kubetrain_trainer.errors import InvalidSetting

LONGEST_POD_NAME = 63
ROLES = {
    JobKind.PYTORCH_JOB: {"Master", "Worker"},
    JobKind.TF_JOB: {"Chief", "Worker", "PS", "Evaluator"},
}
RDZV_BACKENDS = ("c10d", "etcd", "etcd-v2")


def refuse_what_is_misread(job: Job) -> None:
    """
    Raises:
        InvalidSetting: naming the first thing, and what to do instead.
    """
    for objection in _objections(job):
        raise InvalidSetting(f"{job.identity.name}: {objection}")


def _objections(job: Job) -> Iterator[str]:
    if not job.placement.image:
        yield "placement has no image: set image"
    longest = max(f"{job.identity.name}-{replica.role.lower()}-{replica.count - 1}" for replica in job.replicas)
    if len(longest) > LONGEST_POD_NAME:
        yield f"the name of its pod {longest} has more than {LONGEST_POD_NAME} characters: shorten the job's"
    if job.kind is JobKind.BATCH_JOB:
        if job.total_replicas != 1:
            yield f"a batch Job has one pod, not {job.total_replicas}"
        return
    for role in job.roles:
        if role not in ROLES[job.kind]:
            yield f"the operator knows no role '{role}' in a {job.kind}: use {', '.join(sorted(ROLES[job.kind]))}"
    for role in ("Master", "Chief"):
        if job.roles.get(role, 1) != 1:
            yield f"there is one {role}, not {job.roles[role]}: raise the number of Workers"
    if job.processes_per_replica < 1:
        yield f"a pod has at least one process, not {job.processes_per_replica}"
    yield from _elastic_objections(job) if job.elastic else _static_objections(job)


def _static_objections(job: Job) -> Iterator[str]:
    if job.kind is JobKind.PYTORCH_JOB and "Master" not in job.roles:
        yield "Workers without a Master or an elastic policy would never find each other: add one of both"


def _elastic_objections(job: Job) -> Iterator[str]:
    elastic: Elastic = job.elastic or Elastic(min_replicas=0, max_replicas=0)
    if job.kind is not JobKind.PYTORCH_JOB:
        yield f"a {job.kind} cannot be elastic"
    if "Master" in job.roles:
        yield "an elastic job with a Master counts its nodes without it: use Workers only"
    if not 1 <= elastic.min_replicas <= elastic.max_replicas:
        yield (
            f"min_replicas {elastic.min_replicas} must be from 1 to max_replicas {elastic.max_replicas}: "
            "the operator would never start enough"
        )
    workers = job.roles.get("Worker", 0)
    if not elastic.min_replicas <= workers <= elastic.max_replicas:
        yield f"{workers} Workers are not from {elastic.min_replicas} to {elastic.max_replicas}"
    if elastic.rdzv_backend not in RDZV_BACKENDS:
        yield f"rdzv_backend '{elastic.rdzv_backend}' is unknown to torchrun: use {', '.join(RDZV_BACKENDS)}"
    if any(not key or not value for key, value in elastic.rdzv_conf.items()):
        yield "rdzv_conf has an empty key or value, over which the operator or torchrun crashes: leave it out"
    if any(replica.restart_policy is RestartPolicy.EXIT_CODE for replica in job.replicas):
        # An agent whose peer is lost ends with 1, which ExitCode takes for a failure for good.
        yield "an elastic job needs restart_policy OnFailure: under ExitCode a lost worker-0 fails it"
