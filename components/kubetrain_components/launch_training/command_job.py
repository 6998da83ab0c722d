"""CommandJob: a command of the user's in the pods of a framework for which kubetrain has no trainer.

It succeeds if the command exits with code 0 in every pod; with MPI, in the Launcher, which runs mpirun.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.jobs.job import UNBUFFERED, ClaimMount, Job, Replica, restart_policy_of
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import MPI, JobKind
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.mpi_workers import SERVE, USER, WAIT, until_stopped
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.training_job import STAGE


@dataclass(frozen=True, kw_only=True)
class CommandJob:
    framework: str
    command: tuple[str, ...]
    pipeline: str
    run_id: str
    dataset_digest: str = ""
    workers: int = 2
    """Number of pods that train; the Launcher of MPI comes in addition."""
    processes_per_worker: int = 0
    """Number of processes that mpirun starts in each pod, 0: one for each GPU; other frameworks start their own."""
    launcher: Launcher = Launcher.AUTO
    placement: Placement = Placement()
    mounts: tuple[ClaimMount, ...] = ()

    @property
    def identity(self) -> JobIdentity:
        return JobIdentity(pipeline=self.pipeline, stage=STAGE, run_id=self.run_id, dataset=self.dataset_digest)

    def to_job(self) -> Job:
        kind = self.launcher.kind(self.framework)
        replicas = tuple(self._replicas(kind))
        return Job(
            identity=self.identity,
            kind=kind,
            replicas=replicas,
            framework="" if kind.traits.framework else self.framework,
            processes_per_replica=self._processes_in_pod,
            backoff_limit=self.placement.max_restarts * self._pods_that_restart + 1,
            placement=self._placement,
            mounts=self.mounts,
        )

    @property
    def _placement(self) -> Placement:
        is_user_open = self.placement.user == Placement().user
        return replace(self.placement, user=USER) if self.framework == MPI and is_user_open else self.placement

    @property
    def _processes_in_pod(self) -> int:
        return self.processes_per_worker or (max(1, self.placement.gpu_count) if self.framework == MPI else 1)

    @property
    def _pods_that_restart(self) -> int:
        """The number of pods that a failure of one of them restarts."""
        return 1 if self.framework == MPI else self.workers

    def _replicas(self, kind: JobKind) -> Iterator[Replica]:
        if self.framework == MPI:
            yield self._replica("Launcher", 1, self.command)
            yield self._replica("Worker", self.workers, until_stopped(*(SERVE if kind is JobKind.TRAIN_JOB else WAIT)))
            return
        lead = kind.traits.lead_role or "Worker"
        if lead != "Worker":
            yield self._replica(lead, 1, self.command)
        if others := self.workers - (lead != "Worker"):
            yield self._replica("Worker", others, self.command)

    def _replica(self, role: str, count: int, command: tuple[str, ...]) -> Replica:
        policy = restart_policy_of(self.placement)
        return Replica(role=role, count=count, command=command, env=self._environment(), restart_policy=policy)

    def _environment(self) -> dict[str, str]:
        places = {"KUBETRAIN_DATA": DATA_PATH, "KUBETRAIN_OUTPUT": f"{OUTPUT_PATH}/{self.run_id}"}
        mounted = {mount.path for mount in self.mounts}
        present = {name: path for name, path in places.items() if any(path.startswith(item) for item in mounted)}
        return {**UNBUFFERED, "KUBETRAIN_RUN_ID": self.run_id, **present}
