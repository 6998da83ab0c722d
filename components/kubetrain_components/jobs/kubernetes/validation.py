"""What the training operator takes without a word and then runs otherwise than meant: refused, with the reason."""

import re
from collections.abc import Iterator

from kubetrain_components.jobs.job import UNBUFFERED, Elastic, Job, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.operator_environment import operator_environment
from kubetrain_trainer.errors import InvalidSetting

MAX_POD_NAME = 63


def validate_for_operator(job: Job) -> None:
    """
    Raises:
        InvalidSetting: naming the first thing, and what to do instead.
    """
    for objection in _objections(job):
        raise InvalidSetting(f"{job.identity.name}: {objection}")


def _objections(job: Job) -> Iterator[str]:
    yield from _name_objections(job)
    if not job.placement.image:
        yield "placement has no image: set image"
    if job.processes_per_replica < 1:
        yield f"a pod has at least one process, not {job.processes_per_replica}"
    if any(replica.restart_policy is RestartPolicy.ALWAYS for replica in job.replicas):
        yield "under restart_policy Always a pod that succeeds starts again, and the job never ends: use OnFailure"
    if job.kind is JobKind.BATCH_JOB:
        yield from _batch_objections(job)
        return
    yield from _role_objections(job)
    yield from _elastic_objections(job, job.elastic) if job.elastic else _static_objections(job)
    yield from _environment_objections(job)


def _name_objections(job: Job) -> Iterator[str]:
    if not re.match("[a-z]", job.identity.name):
        yield "its pods' services need a name that begins with a letter: begin the pipeline's name with one"
    highest = job.elastic.max_replicas if job.elastic else 0
    pods = [f"{job.identity.name}-{role.lower()}-{max(count, highest) - 1}" for role, count in job.roles.items()]
    longest = max(pods, key=len)
    if len(longest) > MAX_POD_NAME:
        yield f"the name of its pod {longest} has more than {MAX_POD_NAME} characters: shorten the job's"


def _batch_objections(job: Job) -> Iterator[str]:
    if job.total_replicas != 1:
        yield f"a batch Job has one pod, not {job.total_replicas}"
    if job.replicas[0].restart_policy is RestartPolicy.EXIT_CODE:
        yield "a batch Job knows no restart_policy ExitCode: use OnFailure or Never"


def _role_objections(job: Job) -> Iterator[str]:
    if len(job.roles) < len(job.replicas):
        yield "a role comes twice, of which the operator would take one: give each role once"
    known, lead = job.kind.traits.roles, job.kind.traits.lead_role
    for role in job.roles:
        if role not in known:
            yield f"the operator knows no role '{role}' in a {job.kind}: use {', '.join(sorted(known))}"
    if job.roles.get(lead, 1) != 1:
        yield f"there is one {lead}, not {job.roles[lead]}: raise the number of Workers"


def _static_objections(job: Job) -> Iterator[str]:
    lead = job.kind.traits.lead_role
    if job.kind.traits.requires_lead and lead not in job.roles:
        yield f"Workers without a {lead} or an elastic policy would never find each other: add one of both"
    if job.placement.scale_metrics:
        yield "scale_metrics size elastic jobs alone: set min_workers, or leave them out"


def _elastic_objections(job: Job, elastic: Elastic) -> Iterator[str]:
    if not job.kind.traits.can_be_elastic:
        yield f"a {job.kind} cannot be elastic: leave min_workers out"
    if "Master" in job.roles:
        yield "an elastic job with a Master counts its nodes without it: use Workers only"
    if not 1 <= elastic.min_replicas <= elastic.max_replicas:
        yield (
            f"min_replicas {elastic.min_replicas} must be from 1 to max_replicas {elastic.max_replicas}: "
            "the operator would never start enough"
        )
    workers = job.roles["Worker"]
    if not elastic.min_replicas <= workers <= elastic.max_replicas:
        yield f"{workers} Workers are not from {elastic.min_replicas} to {elastic.max_replicas}: ask for as many"
    if elastic.rdzv_backend != "c10d":
        yield f"rdzv_backend '{elastic.rdzv_backend}' needs a server that nothing here starts: use c10d"
    if any(not key or not value or re.search("[,=]", key + value) for key, value in elastic.rdzv_conf.items()):
        yield "rdzv_conf goes to torchrun as key=value,key=value: leave out what is empty or has , or = in it"
    if any(replica.restart_policy is not RestartPolicy.ON_FAILURE for replica in job.replicas):
        # An agent whose peer is lost ends with 1, which ExitCode takes for a failure for good.
        yield "an elastic job needs restart_policy OnFailure: under any other a lost worker-0 fails it"


def _environment_objections(job: Job) -> Iterator[str]:
    """The operator's variables come after ours, and the last one of a name counts."""
    for replica in job.replicas:
        own = operator_environment(job, replica.role, 0, lambda role, index: ("", 0)).keys() - UNBUFFERED.keys()
        for name in sorted(own & {*replica.env, *job.placement.env, *job.placement.secret_env}):
            yield f"{name} is set by the operator, whose value wins: leave it out of env"
