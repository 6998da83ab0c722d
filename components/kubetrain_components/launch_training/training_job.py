"""TrainingJob: what is to be trained, with what, on how many pods; turns into the job that a backend runs."""

from dataclasses import dataclass
from pathlib import Path

from kubetrain_components.jobs.job import UNBUFFERED, Elastic, Job, JobIdentity, JobKind, Replica
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.frameworks import package_of

STAGE = "launch_training"
RENDEZVOUS = {
    "last_call_timeout": "3",  # for those that are still missing when enough are there
    # A pod that was killed is given up after five seconds without a sign of life, not fifteen: until then the others
    # wait. Pods whose clocks differ by more would never find each other.
    "keep_alive_interval": "1",
    "keep_alive_max_attempt": "5",
}
"""Of elastic jobs."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    framework: str
    config: TrainConfig
    pipeline: str
    run_id: str
    data_dir: Path
    output_dir: Path
    dataset_digest: str = ""
    workers: int = 2
    """Pods, the Master or Chief among them."""
    processes_per_worker: int = 1
    max_restarts: int = 3
    """Times that all pods together may start anew."""
    min_workers: int = 0
    """So few go on without the others when pods are lost; 0: all restart. PyTorch only."""

    def __post_init__(self) -> None:
        if self.min_workers and self.framework != "pytorch":
            raise InvalidSetting(
                f"min_workers: {self.framework} cannot go on without a worker that was lost: leave min_workers out"
            )
        if not 0 <= self.min_workers <= self.workers:
            raise InvalidSetting(f"min_workers: {self.min_workers} must be from 0 to {self.workers}, which is workers")

    def to_job(self) -> Job:
        return Job(
            identity=JobIdentity(pipeline=self.pipeline, stage=STAGE, run_id=self.run_id, dataset=self.dataset_digest),
            kind=JobKind.TF_JOB if self.framework == "tensorflow" else JobKind.PYTORCH_JOB,
            replicas=tuple(
                Replica(role=role, count=count, command=self.command(), env=UNBUFFERED)
                for role, count in self._roles().items()
                if count
            ),
            processes_per_replica=self.processes_per_worker,
            elastic=self._elastic(),
            # When one pod is lost the others fail too: each restart of the job is one of every pod.
            backoff_limit=self.max_restarts * self.workers + 1,
        )

    def _roles(self) -> dict[str, int]:
        if self.min_workers:
            return {"Worker": self.workers}
        return {"Chief" if self.framework == "tensorflow" else "Master": 1, "Worker": self.workers - 1}

    def _elastic(self) -> Elastic | None:
        if not self.min_workers:
            return None
        return Elastic(
            min_replicas=self.min_workers,
            max_replicas=self.workers,
            rdzv_conf=RENDEZVOUS,
            # One when a pod is lost, and one when it is back.
            max_restarts=2 * self.max_restarts,
        )

    def command(self) -> tuple[str, ...]:
        package = package_of(self.framework)
        # A launcher even for one process: the RANK that the operator sets is the node's.
        launcher = ("-m", f"{package}.launch") if self.framework == "pytorch" else ()
        return (
            "python",
            *launcher,
            *("-m", f"{package}.train"),
            *("--data-dir", str(self.data_dir)),
            *("--output-dir", str(self.output_dir)),
            *("--dataset-digest", self.dataset_digest),
            *self.config.to_flags(),
        )
