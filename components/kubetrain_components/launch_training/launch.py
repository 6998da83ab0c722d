"""The step: run the training job to its end, and believe in its success only with the checkpoint in hand."""

from typing import Any

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.verdict import JobFailed, lead_result
from kubetrain_components.launch_training.training_job import STAGE, TrainingJob
from kubetrain_trainer.training_output import TrainingOutput

PROOF = {"step", "checkpoint", "manifest_sha256"}
"""What rank 0 says of a complete checkpoint."""


def launch_training(training: TrainingJob, backend: JobBackend, on_line: OnLine) -> dict[str, Any]:
    """The step, name and manifest hash of the checkpoint that the training ended with.

    Raises:
        JobFailed: where a pod failed, or nothing proves that the training completed.
    """
    job = training.to_job()
    result = lead_result(job, run_job(job, backend, on_line))
    if result.get("status") != "completed" or not result.keys() >= PROOF:
        raise JobFailed(
            f"{STAGE} failed: every pod exited with code 0, but rank 0 named no checkpoint; look at its log"
        )
    if training.mounts:
        return result  # the output is on a claim, which the next step reads: it verifies every byte
    checkpoint = TrainingOutput(training.output_dir).verify_result(result)
    return {**result, "epoch": checkpoint.manifest["epoch"], "world_size": checkpoint.manifest["world_size"]}
