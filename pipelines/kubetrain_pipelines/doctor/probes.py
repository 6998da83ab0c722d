"""Run two small jobs, one after the other, to check images, mounts, and S3 as pods see it.

The writer resembles a dataset transfer: it writes to new PVCs and accesses S3. The reader resembles a training without
devices: it mounts read-only what training pods would mount. Everything created is deleted, also on Ctrl-C.
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
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, unknown
from kubetrain_trainer.errors import KubetrainError

Say = Callable[[str], None]
Outcome = Mapping[str, str] | KubetrainError
"""The report of a pod by test, or the error that prevented it."""

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
"""Shorter than those of a run, because a user is waiting and no queue or autoscaler is involved."""
CLAIM_SIZE = "1Gi"
IMAGE_TROUBLES = (TroubleKind.IMAGE_PULL, TroubleKind.BAD_IMAGE_NAME)
PROVIDE_IMAGE = (
    "run `make images`, push the images to a registry that the nodes can pull from, and set them:\n"
    "--set image=REGISTRY/trainer-pytorch:0.1.0 "
    '--set transfer=\'{"image": "REGISTRY/components:0.1.0"}\'\n'
    "if the registry requires credentials: --set image_pull_secrets='[\"NAME\"]'"
)
OTHER_STORAGE = (
    "use storage that supports fsGroup: --set storage_class=ANOTHER\nor run as the owner of its folder: --set user=UID"
)
OTHER_EXPOSURE = "--set exposure=shared, or another storage class"
FIX_S3 = "correct the URI, s3_endpoint (as pods reach it) or the secret, or grant access"


@dataclass(frozen=True)
class Probes:
    """Everything that is created for the two jobs."""

    claims: tuple[Manifest, ...]
    exposure: Exposure | None
    """The reader's access to what the writer wrote; None: through the staging PVC itself."""
    writer: Job
    reader: Job

    @property
    def manifests(self) -> list[Manifest]:
        return [*self.claims, *(self.exposure.manifests() if self.exposure else [])]


def probe_claim(wanted: WantedClaim, token: str) -> Manifest:
    """Return the manifest of a small new PVC like the wanted one."""
    return replace(wanted, name=f"doctor-{wanted.purpose}-{token}", size=CLAIM_SIZE).manifest()


def writer_job(token: str, placement: Placement, claims: Sequence[Manifest], s3: Mapping[str, list[str]]) -> Job:
    mounts = tuple(
        ClaimMount(claim=claim["metadata"]["name"], path=f"/claim-{index}") for index, claim in enumerate(claims)
    )
    return _job("write", token, placement, mounts, {"write": [mount.path for mount in mounts], **s3})


def reader_job(token: str, placement: Placement, claim: str, *, is_ours: bool) -> Job:
    mount = ClaimMount(claim=claim, path="/data", read_only=True)
    return _job("read", token, placement, (mount,), {"read_only": ["/data", "mark" if is_ours else ""]})


def run_probes(probes: Probes, api: KubernetesApi, say: Say) -> tuple[Outcome, Outcome]:
    """Return the reports of the writer and the reader."""
    with _cleaned_up(probes, api, say), KubernetesBackend(api) as backend:
        claims = KubernetesClaims(api)
        say(f"a pod writes to new PVCs ({probes.writer.placement.image})")
        try:
            for claim in probes.claims:
                claims.create(claim)
            written = _outcome(probes.writer, backend)
            # After the writer has ended, because a copy of the volume may lack what is written later.
            for manifest in probes.exposure.manifests() if probes.exposure else []:
                claims.create(manifest)
        except KubetrainError as error:
            return error, error
        say(f"a pod mounts the PVC read-only ({probes.reader.placement.image})")
        return written, _outcome(probes.reader, backend)


def judge_outcomes(probes: Probes, written: Outcome, read: Outcome, s3: Sequence[str]) -> Iterator[Finding]:
    """
    Args:
        s3: The names of the S3 tests that ran.
    """
    yield _judge_image(probes.writer.placement.image, written).named("components image")
    yield _judge_test("write", written, OTHER_STORAGE).named("write")
    for name in s3:
        yield _judge_test(name, written, FIX_S3).named(f"S3 {name}")
    yield _judge_image(probes.reader.placement.image, read).named("trainer image")
    yield _judge_test("read_only", read, OTHER_EXPOSURE).named("read-only mount")


def _judge_image(image: str, outcome: Outcome) -> Finding:
    if not isinstance(outcome, KubetrainError):
        return ok(f"{image} starts in a pod")
    if _is_of_image(outcome):
        return missing(f"{image}: {outcome}", PROVIDE_IMAGE)
    return unknown(f"not tested: {outcome}")


def _judge_test(name: str, outcome: Outcome, remedy: str) -> Finding:
    if isinstance(outcome, JobFailed) and not _is_of_image(outcome):
        return missing(str(outcome), remedy)
    if isinstance(outcome, KubetrainError):
        return unknown(str(outcome))
    seen = outcome.get(name, "error: the pod did not report it")
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
    stage: str, token: str, placement: Placement, mounts: tuple[ClaimMount, ...], tests: Mapping[str, list[str]]
) -> Job:
    command = ("python", "-c", PROGRAM.read_text(), json.dumps(tests))
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
        paths = [api.path(*job.kind.traits.resource, job.identity.name) for job in (probes.writer, probes.reader)]
        for manifest in reversed(probes.manifests):
            paths.append(api.path(*CLAIM_RESOURCES[manifest["kind"]], manifest["metadata"]["name"]))
        with interrupts_deferred():
            for path in paths:
                try:
                    api.delete(path)
                except KubetrainError as error:
                    say(f"{path} could not be deleted ({error}): delete it yourself")
