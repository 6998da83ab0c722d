"""TrainingJob: what is to be trained, with what, on how many pods; turns into the job that a backend runs."""

from dataclasses import dataclass
from pathlib import Path

from kubetrain_components.jobs.job import UNBUFFERED, Job, JobIdentity, JobKind, Replica
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.frameworks import package_of

STAGE = "launch_training"


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

    def to_job(self) -> Job:
        lead = "Chief" if self.framework == "tensorflow" else "Master"
        counts = {lead: 1, "Worker": self.workers - 1}
        return Job(
            identity=JobIdentity(pipeline=self.pipeline, stage=STAGE, run_id=self.run_id, dataset=self.dataset_digest),
            kind=JobKind.TF_JOB if self.framework == "tensorflow" else JobKind.PYTORCH_JOB,
            replicas=tuple(
                Replica(role=role, count=count, command=self.command(), env=UNBUFFERED)
                for role, count in counts.items()
                if count
            ),
            processes_per_replica=self.processes_per_worker,
            # When one pod is lost the others fail too: each restart of the job is one of every pod.
            backoff_limit=self.max_restarts * self.workers + 1,
        )

    def command(self) -> tuple[str, ...]:
        # torchrun even for one process: the RANK that the operator sets is the node's.
        launcher = ("python",) if self.framework == "tensorflow" else ("torchrun",)
        return (
            *launcher,
            "-m",
            f"{package_of(self.framework)}.train",
            *("--data-dir", str(self.data_dir)),
            *("--output-dir", str(self.output_dir)),
            *("--dataset-digest", self.dataset_digest),
            *self.config.to_flags(),
        )
