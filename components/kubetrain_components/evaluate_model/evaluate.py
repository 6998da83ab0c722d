"""The step: evaluate the exported model on the test split, in a job with one pod.

The model of a script of your own is evaluated by its evaluation entry, or it has the metrics that the script wrote.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubetrain_components.evaluate_model.findings import describe_comparison, describe_unanswered
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import OWN_PROGRAM, ClaimMount, Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.dataset_place import cache_variables, dataset_flags
from kubetrain_components.run.stages import EVALUATE
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.entry import parse_entry

STAGE = EVALUATE.name


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    framework: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    """The training's entry; empty: the trainer's own loop."""
    pipeline: str
    run_id: str
    data_dir: Path
    output_dir: Path
    """The folder of the run's output in the pod."""
    dataset_digest: str
    dataset_files: float = 0
    """Number of files in the dataset version; 0: unknown."""
    manifest_sha256: str
    """Hash of the manifest of the checkpoint whose export is evaluated."""
    latest: Path | None = None
    """Folder in which the pod finds the latest published model, to evaluate it too; None: the gate does not compare."""
    shard_cache: Path | None = None
    """Folder in which the pod finds tar shards that stayed in the store."""
    placement: Placement = Placement()
    mounts: tuple[ClaimMount, ...] = ()
    """The PVCs with data_dir and the output; empty on the local machine."""

    @property
    def program(self) -> str:
        """The module that evaluates; empty: nothing does."""
        if (entry := parse_entry(self.entry)) is None:
            return f"{package_of(self.framework)}.evaluate"
        return "kubetrain_trainer.own_code.own_evaluation" if entry.evaluation else ""


def evaluate_model(
    request: EvaluationRequest, output: TrainingOutput, backend: JobBackend, on_line: OnLine
) -> dict[str, Any]:
    """Evaluate the collected model and return its evaluation.json.

    Raises:
        JobFailed: if the evaluation job failed.
        KubetrainError: if evaluation.json belongs to another model.
    """
    if request.program:
        run_job(evaluation_job(request), backend, on_line)
    evaluation = output.read_evaluation()
    if not evaluation["metrics"]:
        print(
            "the model is not evaluated: your code wrote no metrics.json, and train.entry has no evaluation", flush=True
        )
    for line in (*describe_unanswered(evaluation), *describe_comparison(evaluation)):
        print(line, flush=True)
    if evaluation["manifest_sha256"] != request.manifest_sha256:
        raise KubetrainError(
            f"{output.path / 'evaluation.json'} belongs to {evaluation['checkpoint']}, not to the collected model: "
            "the model was exported again during the run; start the run again"
        )
    return evaluation


def evaluation_job(request: EvaluationRequest) -> Job:
    command = ("python", "-m", request.program)
    paths = ("--data-dir", str(request.data_dir), "--output-dir", str(request.output_dir))
    latest = ("--latest", str(request.latest)) if request.latest else ()
    return Job(
        identity=JobIdentity(
            pipeline=request.pipeline, stage=STAGE, run_id=request.run_id, dataset=request.dataset_digest
        ),
        kind=JobKind.BATCH_JOB,
        replicas=(
            Replica(
                role="Evaluation",
                count=1,
                command=(*command, *paths, *latest, *dataset_flags(request.dataset_digest, request.dataset_files)),
                env={**OWN_PROGRAM, **cache_variables(request.shard_cache)},
            ),
        ),
        backoff_limit=2,
        placement=request.placement,
        mounts=request.mounts,
    )
