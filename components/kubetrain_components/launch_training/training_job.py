"""TrainingJob: what to train, with which settings, in how many pods. It becomes the job that a backend runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.job import OWN_PROGRAM, UNBUFFERED, ClaimMount, Elastic, Job, Replica, restart_policy_of
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.pod_template import host_port
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement, processes_in_pod
from kubetrain_components.run.dataset_place import cache_variables, dataset_flags
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.run_settings import check_growth
from kubetrain_components.run.stages import TRAIN
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output import output_store
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.entry import parse_entry

STAGE = TRAIN.name
ENVIRONMENTS = {
    "pytorch": OWN_PROGRAM,
    # Without this variable, the first process on a GPU takes all of its memory.
    "tensorflow": {**OWN_PROGRAM, "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
}
METRICS_PORT_OFFSET = 10_000
RENDEZVOUS = {
    "last_call_timeout": "3",  # how long to wait for missing pods once enough have joined
    # Count a killed pod as lost after five seconds without a heartbeat instead of fifteen, because the others wait.
    # Pods whose clocks differ by more than five seconds would never find each other.
    "keep_alive_interval": "1",
    "keep_alive_max_attempt": "5",
}
"""Rendezvous settings of elastic jobs."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    framework: str
    config: TrainConfig
    pipeline: str
    run_id: str
    data_dir: Path
    output_dir: Path
    dataset_digest: str = ""
    dataset_files: float = 0
    """Number of files in the dataset version; 0: unknown."""
    workers: int = 2
    """Number of pods, including the Master or Chief."""
    processes_per_worker: int = 0
    """0: one for each GPU of a pod."""
    min_workers: int = 0
    """Minimum number of pods that training continues with after losing others; 0: all pods restart. PyTorch only."""
    max_workers: int = 0
    """Maximum number of pods that an elastic training grows to; 0: as many as workers."""
    launcher: Launcher = Launcher.AUTO
    placement: Placement = Placement()
    shard_cache: Path | None = None
    """Folder in which the pods find tar shards that stayed in the store."""
    mounts: tuple[ClaimMount, ...] = ()
    """PVCs that hold data_dir and output_dir."""

    @classmethod
    def of(cls, run: RunParameters, **places: Any) -> "TrainingJob":
        """Return the training of a run.

        Args:
            places: The fields that no setting says: where the data and the output are.
        """
        return cls(
            framework=run.framework,
            config=run.train_config,
            pipeline=run.pipeline,
            run_id=run.run_id,
            workers=run.workers,
            processes_per_worker=run.processes_per_worker,
            min_workers=run.min_workers,
            max_workers=run.max_workers,
            launcher=Launcher(run.launcher),
            placement=run.placement,
            **places,
        )

    def __post_init__(self) -> None:
        if (self.min_workers or self.max_workers) and self.framework != "pytorch":
            raise InvalidSetting(
                f"pods.min_workers: {self.framework} cannot continue with other numbers of workers: leave "
                "pods.min_workers and pods.max_workers out"
            )
        if self.launcher is Launcher.RAY and not self.config.entry:
            raise InvalidSetting("pods.launcher=ray runs a script that uses Ray Train: set train.entry to yours")
        check_growth(self.workers, self.min_workers, self.max_workers)
        if self.min_workers and self._runs_command:
            raise InvalidSetting(
                "pods.min_workers: a command of your own cannot tell which of its pods is the first: use a script as "
                "train.entry, or leave pods.min_workers out"
            )
        if self.config.uses_cache and not self.shard_cache:
            raise InvalidSetting(
                "data.delivery=cache: only runs of a pipeline list the shards in S3: use `kubetrain run` or `submit`, "
                "or leave data.delivery out"
            )
        _ = self.processes_in_pod

    def to_job(self) -> Job:
        return Job(
            identity=self.identity,
            kind=self._kind,
            replicas=tuple(
                Replica(
                    role=role,
                    count=count,
                    command=() if self._runs_ray(role) else self.command(),
                    env={
                        **(UNBUFFERED if self._runs_ray(role) else ENVIRONMENTS[self.framework]),
                        **cache_variables(self.shard_cache),
                    },
                    restart_policy=restart_policy_of(self.placement, is_elastic=self.min_workers > 0),
                )
                for role, count in self._roles().items()
                if count
            ),
            framework="" if self._kind.traits.framework else self.framework,
            processes_per_replica=self.processes_in_pod,
            elastic=self._elastic(),
            # If one pod is lost the others fail too, so that each restart of the training restarts every pod.
            backoff_limit=self.placement.max_restarts * self.most_workers + 1,
            placement=self.placement,
            mounts=self.mounts,
            metrics_port=self._config().metrics_port,
        )

    @property
    def most_workers(self) -> int:
        return self.max_workers or self.workers

    @property
    def is_here(self) -> bool:
        """True if data_dir and output_dir are folders of this machine."""
        return not self.mounts and output_store.VARIABLE not in self.placement.env

    @property
    def processes_in_pod(self) -> int:
        return processes_in_pod(self.framework, self.processes_per_worker, self.placement, self.config.entry)

    @property
    def identity(self) -> JobIdentity:
        return JobIdentity(pipeline=self.pipeline, stage=STAGE, run_id=self.run_id, dataset=self.dataset_digest)

    @property
    def _kind(self) -> JobKind:
        return self.launcher.kind(self.framework)

    def _roles(self) -> dict[str, int]:
        if not self._kind.traits.lead_role:
            # Nothing scales such a job: those pods that the cluster has no room for at first join later.
            return {"Worker": self.most_workers}
        if self._kind is JobKind.RAY_JOB:
            return {"Submitter": 1, "Head": 1, "Worker": self.workers}
        if self.min_workers:
            return {"Worker": self.workers}
        return {self._kind.traits.lead_role: 1, "Worker": self.workers - 1}

    def _runs_ray(self, role: str) -> bool:
        """Return True for pods that KubeRay gives a command: `ray start`."""
        return self._kind is JobKind.RAY_JOB and role != "Submitter"

    def _elastic(self) -> Elastic | None:
        if not self.min_workers:
            return None
        return Elastic(
            min_replicas=self.min_workers,
            max_replicas=self.most_workers,
            rdzv_conf=RENDEZVOUS | {name: str(value) for name, value in self.placement.rdzv_conf.items()},
            # Each loss costs two restarts: one without the pod, and one when it is back.
            max_restarts=2 * self.placement.max_restarts,
            metrics=tuple(self.placement.scale_metrics),
        )

    @property
    def _runs_command(self) -> bool:
        """Return True if a command of your own starts the processes of a pod."""
        entry = parse_entry(self.config.entry)
        return entry is not None and bool(entry.command)

    def command(self) -> tuple[str, ...]:
        package = package_of(self.framework)
        if self._kind is JobKind.RAY_JOB:
            return ("python", "-m", "kubetrain_trainer.own_code.ray_job", f"{package}.own_code", *self._flags())
        # Even one process needs a launcher, because the operator sets RANK to the rank of the node.
        launcher = (
            ("-m", f"{package}.launching.launch") if self.framework == "pytorch" and not self._runs_command else ()
        )
        return (
            "python",
            *launcher,
            *("-m", f"{package}.{'own_code' if self.config.entry else 'train'}"),
            *self._flags(),
        )

    def _flags(self) -> tuple[str, ...]:
        return (
            *("--data-dir", str(self.data_dir)),
            *("--output-dir", str(self.output_dir)),
            *dataset_flags(self.dataset_digest, self.dataset_files),
            *self._config().to_flags(),
        )

    def _config(self) -> TrainConfig:
        """Return the settings, on a node's network with a metrics port that other jobs are unlikely to use."""
        if not self.placement.host_network or self.config.metrics_port != TrainConfig().metrics_port:
            return self.config
        return replace(self.config, metrics_port=host_port(self.identity) - METRICS_PORT_OFFSET)
