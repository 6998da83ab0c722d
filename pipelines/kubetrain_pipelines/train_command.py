"""`kubetrain train`: one training job on this machine, followed to its end."""

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.job import LogLine
from kubetrain_components.jobs.local_backend import LocalBackend
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.run_parameters import RunParameters
from kubetrain_components.sync_dataset.publish import read_version
from kubetrain_pipelines.settings import parse_settings
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import KubetrainError

PIPELINE = "train"


def train_and_show(
    *,
    framework: str,
    data: Path,
    output: Path,
    run_id: str,
    workers: int,
    min_workers: int,
    processes_per_worker: int,
    max_restarts: int,
    pairs: Iterable[str],
) -> None:
    config = parse_settings(framework, pairs).config
    RunParameters(
        dataset_uri=str(data),
        framework=framework,
        train_config=config.to_dict(),
        workers=workers,
        processes_per_worker=processes_per_worker,
        model_uri=str(output),
        run_id=run_id,
    ).check()
    data_dir, digest = _dataset(data.resolve(), config)
    run_id = run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    _launch(
        TrainingJob(
            framework=framework,
            config=config,
            pipeline=PIPELINE,
            run_id=run_id,
            data_dir=data_dir,
            output_dir=output.resolve() / run_id,
            dataset_digest=digest,
            workers=workers,
            processes_per_worker=processes_per_worker,
            max_restarts=max_restarts,
            min_workers=min_workers,
        )
    )


def _dataset(folder: Path, config: TrainConfig) -> tuple[Path, str]:
    """The samples, and their digest where the folder is a dataset version."""
    if not folder.is_dir() and config.data != "synthetic":
        raise KubetrainError(
            f"{folder} is not a directory: name a dataset version, or a folder of <split>/<class>/<image>"
        )
    version = read_version(folder)
    return (version.data, str(version.header["digest"])) if version else (folder, "")


def _launch(training: TrainingJob) -> None:
    print(f"run {training.run_id} (the same --run-id resumes it)", flush=True)
    with interrupted_by_sigterm(), LocalBackend(training.output_dir.parent / ".jobs") as backend:
        result = launch_training(training, backend, print_line)
    print(f"trained {result['step']} steps; the model is in {training.output_dir / 'export'}")


def print_line(line: LogLine) -> None:
    print(f"[{line.pod}] {line.text}", flush=True)
