"""What only pods can tell: images, mounts, S3 from inside. Two small jobs of ours, one after the other.

The first is like a transfer's: it writes to fresh claims and asks S3. The second is like a training's without its
devices: it mounts read-only what pods of a training would. All that is made is deleted, also on Ctrl-C.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.expose_dataset.expose import Exposure
from kubetrain_components.expose_dataset.kubernetes_claims import RESOURCES as CLAIM_RESOURCES
from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.budgets import Budgets
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import UNBUFFERED, ClaimMount, Job, JobIdentity, Replica, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import JobFailed, lead_result
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.finding import Finding, attempt, missing, ok, unknown
from kubetrain_trainer.errors import KubetrainError

Say = Callable[[str], None]
Outcome = Mapping[str, str] | KubetrainError
"""What a pod saw, by the name of each try; or why it could not."""

PROGRAM = Path(__file__).with_name("pod_program.py")
SMALL = {"cpu": "50m", "cpu_limit": "", "memory": "256Mi", "memory_limit": "", "shm_size": "", "extra_resources": {}}
WITHOUT_DEVICES = {"gpus": 0, "rdma": 0, "network": "", "host_network": False, "together": ""}
WITHOUT_QUEUE = {"scheduler": "", "queue": ""}
TIMES = {"grace_seconds": 1, "deadline_seconds": 0, "start_seconds": 180, "ttl_seconds": 3600}
BUDGETS = Budgets(
    start_seconds=180,
    run_seconds=180,
    troubles={
        TroubleKind.IMAGE_PULL: 10,
        TroubleKind.BAD_IMAGE_NAME: 0,
        TroubleKind.CONFIGURATION: 10,
        TroubleKind.UNSCHEDULABLE: 60,
        TroubleKind.POD_SECURITY: 5,
        TroubleKind.REFUSED: 5,
        TroubleKind.QUOTA: 5,
        TroubleKind.NOT_CREATED: 10,
        TroubleKind.VOLUME: 120,
    },
)
"""Of a run others may be waited for; whoever asks what is missing wants to know it soon."""
CLAIM_SIZE = "1Gi"
IMAGE_TROUBLES = (TroubleKind.IMAGE_PULL, TroubleKind.BAD_IMAGE_NAME)
GET_IMAGE = (
    "make images, push them to where the nodes pull from, and name them: --set image=REGISTRY/trainer-pytorch:0.1.0 "
    '--set transfer=\'{"image": "REGISTRY/components:0.1.0"}\'\n'
    "with credentials, where that asks for some: --set image_pull_secrets='[\"NAME\"]'"
)
OTHER_STORAGE = (
    "use storage that heeds fsGroup: --set storage_class=ANOTHER\nor run as the owner of its folder: --set user=UID"
)
MEND_S3 = "correct the URI, s3_endpoint (as pods reach it) or what the secret holds, or have the access granted"


@dataclass(frozen=True)
class Probes:
    """What is made for a try, all of it."""

    claims: tuple[Manifest, ...]
    exposure: Exposure | None
    """How the second pod sees what the first wrote; None: by the staging claim itself."""
    writes: Job
    reads: Job

    @property
    def manifests(self) -> list[Manifest]:
        return [*self.claims, *(self.exposure.manifests() if self.exposure else [])]


def stand_in(wanted: WantedClaim, token: str) -> Manifest:
    """A fresh claim like the one of the run."""
    return replace(wanted, name=f"doctor-{wanted.purpose}-{token}", size=CLAIM_SIZE).manifest()


def writing_job(token: str, placement: Placement, claims: Sequence[Manifest], s3: Mapping[str, list[str]]) -> Job:
    mounts = tuple(
        ClaimMount(claim=claim["metadata"]["name"], path=f"/claim-{index}") for index, claim in enumerate(claims)
    )
    return _job("write", token, placement, mounts, {"write": [mount.path for mount in mounts], **s3})


def reading_job(token: str, placement: Placement, claim: str, *, is_ours: bool) -> Job:
    mount = ClaimMount(claim=claim, path="/data", read_only=True)
    return _job("read", token, placement, (mount,), {"read_only": ["/data", "mark" if is_ours else ""]})


def try_out(probes: Probes, api: KubernetesApi, say: Say) -> tuple[Outcome, Outcome]:
    """What both pods saw."""
    with _cleaned_up(probes, api, say), KubernetesBackend(api) as backend:
        claims = KubernetesClaims(api)
        say(f"a pod writes to fresh claims ({probes.writes.placement.image})")
        try:
            for claim in probes.claims:
                claims.create(claim)
            wrote = _outcome(probes.writes, backend)
            # Only now: what is written later may or may not be in a copy of the volume.
            for manifest in probes.exposure.manifests() if probes.exposure else []:
                claims.create(manifest)
        except KubetrainError as error:
            return error, error
        say(f"a pod mounts read-only what it wrote ({probes.reads.placement.image})")
        return wrote, _outcome(probes.reads, backend)


def judge_outcomes(probes: Probes, wrote: Outcome, read: Outcome, s3: Sequence[str]) -> Iterator[Finding]:
    """
    Args:
        s3: Which tries of S3 were asked for.
    """
    yield attempt("components image", lambda: _judge_image(probes.writes.placement.image, wrote))
    yield attempt("write", lambda: _judge_seen("write", wrote, OTHER_STORAGE))
    for name in s3:
        yield attempt(f"S3 {name}", lambda name=name: _judge_seen(name, wrote, MEND_S3))  # type: ignore[misc]
    yield attempt("trainer image", lambda: _judge_image(probes.reads.placement.image, read))
    yield attempt(
        "read-only mount", lambda: _judge_seen("read_only", read, "--set exposure=shared, or another storage class")
    )


def _judge_image(image: str, outcome: Outcome) -> Finding:
    if not isinstance(outcome, KubetrainError):
        return ok(f"{image} starts in a pod")
    if _is_of_image(outcome):
        return missing(f"{image}: {outcome}", GET_IMAGE)
    return unknown(f"its pod did not come so far: {outcome}")


def _judge_seen(name: str, outcome: Outcome, remedy: str) -> Finding:
    if isinstance(outcome, JobFailed) and not _is_of_image(outcome):
        return missing(str(outcome), remedy)
    if isinstance(outcome, KubetrainError):
        return unknown(str(outcome))
    seen = outcome.get(name, "error: the pod said nothing")
    return missing(seen.removeprefix("error: "), remedy) if seen.startswith("error: ") else ok(seen)


def _is_of_image(error: KubetrainError) -> bool:
    return isinstance(error, JobFailed) and error.trouble in IMAGE_TROUBLES


def _outcome(job: Job, backend: KubernetesBackend) -> Outcome:
    try:
        seen = lead_result(job, run_job(job, backend, lambda line: None, BUDGETS)).get("seen", {})
    except KubetrainError as error:
        return error
    return {str(name): str(text) for name, text in seen.items()}


def _job(
    stage: str, token: str, placement: Placement, mounts: tuple[ClaimMount, ...], asked: Mapping[str, list[str]]
) -> Job:
    command = ("python", "-c", PROGRAM.read_text(), json.dumps(asked))
    small = replace(placement, **{**SMALL, **WITHOUT_DEVICES, **WITHOUT_QUEUE, **TIMES})  # type: ignore[arg-type]
    return Job(
        identity=JobIdentity(pipeline="doctor", stage=stage, run_id=token),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Probe", count=1, command=command, env=UNBUFFERED, restart_policy=RestartPolicy.NEVER),),
        placement=small,
        mounts=mounts,
    )


@contextlib.contextmanager
def _cleaned_up(probes: Probes, api: KubernetesApi, say: Say) -> Iterator[None]:
    try:
        yield
    finally:
        paths = [api.path(*job.kind.traits.resource, job.identity.name) for job in (probes.writes, probes.reads)]
        for manifest in reversed(probes.manifests):
            paths.append(api.path(*CLAIM_RESOURCES[manifest["kind"]], manifest["metadata"]["name"]))
        with interrupts_deferred():
            for path in paths:
                try:
                    api.delete(path)
                except KubetrainError as error:
                    say(f"{path} could not be deleted ({error}): delete it when nobody needs it")
