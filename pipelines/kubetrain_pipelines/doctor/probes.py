"""Run small jobs, one after the other, to check images, mounts, your own task, and S3 as pods see it.

The step resembles a pod of Kubeflow Pipelines: it writes to the store of the models. Another pod imports the task, if
it is your own. The writer resembles a dataset transfer: it writes to new PVCs and reads the dataset. The reader
resembles a training without devices: it mounts read-only what training pods would mount. Everything created is deleted,
also on Ctrl-C.
"""

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubetrain_components import DATA_PATH
from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.expose_dataset.expose import Exposure
from kubetrain_components.expose_dataset.kubernetes_claims import PVCS, KubernetesClaims
from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.budgets import Budgets
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import OWN_PROGRAM, ClaimMount, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest
from kubetrain_components.jobs.kubernetes.manifests.volumes import CODE_MOUNT
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import lead_result
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.check_imports import import_job
from kubetrain_components.run.parameters import RunParameters
from kubetrain_trainer.errors import KubetrainError

Say = Callable[[str], None]
Outcome = Mapping[str, str] | KubetrainError
"""The report of a pod by test, or the error that prevented it."""

PROGRAM = Path(__file__).with_name("pod_program.py")
CPU, SMALL = "50m", {"memory": "256Mi", "shm_size": ""}
ALONE = {"network": "", "together": ""}
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


@dataclass(frozen=True)
class Probes:
    """Everything that is created for the jobs."""

    claims: tuple[Manifest, ...]
    exposure: Exposure | None
    """The reader's access to what the writer wrote; None: through the staging PVC itself."""
    step: Job
    writer: Job
    reader: Job
    task: Job | None = None
    """Imports a task of your own."""
    stores: Collection[str] = ()
    """The names of the tests of stores."""

    @property
    def jobs(self) -> list[Job]:
        return [job for job in (self.step, self.task, self.writer, self.reader) if job]

    @property
    def exposed(self) -> list[Manifest]:
        return [self.exposure.manifest()] if self.exposure and self.exposure.creates_claim else []

    @property
    def keeper(self) -> Manifest:
        """A job without pods that owns the PVCs. If doctor is killed, its time to live is also theirs."""
        manifest = job_manifest(self.writer)
        spec = {**manifest["spec"], "parallelism": 0, "completions": 0, "backoffLimit": 0}
        return {**manifest, "metadata": {"name": f"{self.writer.identity.name}-keeper"}, "spec": spec}


@dataclass(frozen=True)
class Outcomes:
    """The outcome of each job."""

    step: Outcome
    writer: Outcome
    reader: Outcome
    task: Outcome | None = None


def probe_claim(wanted: WantedClaim, token: str) -> Manifest:
    """Return the manifest of a small new PVC like the wanted one."""
    return replace(wanted, name=f"doctor-{wanted.purpose}-{token}", size=CLAIM_SIZE).manifest()


def step_job(token: str, placement: Placement, s3: Mapping[str, list[str]]) -> Job:
    return _job("step", token, placement, (), s3)


def writer_job(token: str, placement: Placement, claims: Sequence[Manifest], s3: Mapping[str, list[str]]) -> Job:
    mounts = tuple(
        ClaimMount(claim=claim["metadata"]["name"], path=f"/claim-{index}") for index, claim in enumerate(claims)
    )
    writes = {"write": [mount.path for mount in mounts]} if mounts else {}
    return _job("write", token, placement, mounts, {**writes, **s3})


def reader_job(
    token: str, placement: Placement, claim: str, *, is_ours: bool, etcd: Mapping[str, list[str]] | None = None
) -> Job:
    mounts = (ClaimMount(claim=claim, path=DATA_PATH, read_only=True),) if claim else ()
    mounted = {"read_only": [DATA_PATH, "mark" if is_ours else ""]} if claim else {}
    return _job("read", token, placement, mounts, {**mounted, **(etcd or {})})


def task_job(token: str, run: RunParameters) -> Job:
    settings: dict[str, Any] = {**WITHOUT_QUEUE, **TIMES}
    identity = JobIdentity(pipeline="doctor", stage="import", run_id=token)
    return import_job(identity, run.framework, run.train_config, replace(run.placement, **settings))


def run_probes(probes: Probes, api: KubernetesApi, say: Say) -> Outcomes:
    with _cleaned_up(probes, api, say), KubernetesBackend(api) as backend:
        say(f"a pod like those of Kubeflow Pipelines starts ({probes.step.placement.image})")
        step = _outcome(probes.step, backend)
        task = _import_task(probes.task, backend, say)
        say(f"a pod writes to new PVCs ({probes.writer.placement.image})")
        try:
            keeper = api.create(api.path(*JobKind.BATCH_JOB.traits.resource), probes.keeper)
            _create(probes.claims, keeper, api)
            written = _outcome(probes.writer, backend)
            # After the writer has ended, because a copy of the volume may lack what is written later.
            _create(probes.exposed, keeper, api)
        except KubetrainError as error:
            return Outcomes(step, error, error, task)
        say(f"a pod mounts the PVC read-only ({probes.reader.placement.image})")
        return Outcomes(step, written, _outcome(probes.reader, backend), task)


def _import_task(job: Job | None, backend: KubernetesBackend, say: Say) -> Outcome | None:
    if job is None:
        return None
    say(f"a pod tries your own code ({job.placement.image})")
    return _outcome(job, backend)


def _create(manifests: Iterable[Manifest], keeper: Manifest, api: KubernetesApi) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", **{key: keeper["metadata"][key] for key in ("name", "uid")}}
    for manifest in manifests:
        metadata = {**manifest["metadata"], "ownerReferences": [owner]}
        KubernetesClaims(api).create({**manifest, "metadata": metadata})


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
    settings: dict[str, Any] = {**SMALL, **ALONE, **WITHOUT_QUEUE, **TIMES}
    return Job(
        identity=JobIdentity(pipeline="doctor", stage=stage, run_id=token),
        kind=JobKind.BATCH_JOB,
        replicas=(
            Replica(role="Probe", count=1, command=command, env=OWN_PROGRAM, restart_policy=RestartPolicy.NEVER),
        ),
        placement=placement.small(CPU, (CODE_MOUNT["name"],), **settings),
        mounts=mounts,
    )


@contextlib.contextmanager
def _cleaned_up(probes: Probes, api: KubernetesApi, say: Say) -> Iterator[None]:
    try:
        yield
    finally:
        names = [*(job.identity.name for job in probes.jobs), probes.keeper["metadata"]["name"]]
        paths = [api.path(*JobKind.BATCH_JOB.traits.resource, name) for name in names]
        for manifest in reversed([*probes.claims, *probes.exposed]):
            paths.append(api.path(*PVCS, manifest["metadata"]["name"]))
        with interrupts_deferred():
            for path in paths:
                try:
                    api.delete(path)
                except KubetrainError as error:
                    say(f"{path} could not be deleted ({error}): delete it yourself")
