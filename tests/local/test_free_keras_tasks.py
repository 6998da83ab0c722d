"""A Keras task with parts of its own in two processes, which train and measure as one process does."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start_python, tf_config
from support.training import newest, tensorflow_parameters

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SETTINGS = TrainConfig(
    model="support.free_keras_tasks:build",
    epochs=2,
    checkpoint_every=100,
    log_every=1,
    metric="loss",
    metrics_port=0,
    precision="fp32",
    test_split="val",
)


def start_program(program: str, folder: Path, name: str, *flags: str, **environment: str) -> "subprocess.Popen[str]":
    arguments = ["-m", f"kubetrain_trainer.tensorflow_multiworker.{program}", "--data-dir", ".", "--output-dir", name]
    return start_python(*arguments, *flags, cwd=folder, **environment)


def end(*processes: "subprocess.Popen[str]") -> None:
    logs = [process.communicate(timeout=150)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), logs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training by two processes, evaluated on the split that validated it, and the same by one process."""
    folder, ports = tmp_path_factory.mktemp("keras"), free_ports(2)
    two, one = (
        TrainConfig.from_dict({**SETTINGS.to_dict(), "batch_size": size, "weight_decay": ignored}).to_flags()
        for size, ignored in ((4, 0.0), (8, 0.5))
    )
    end(
        *(start_program("train", folder, "two", *two, TF_CONFIG=tf_config(ports, index)) for index in range(2)),
        start_program("train", folder, "one", *one),
    )
    end(start_program("evaluate", folder, "two"))
    return folder


def test_metrics_of_two_processes_are_those_of_the_undivided_split(folder: Path) -> None:
    measured, expected = newest(folder / "two").manifest["metrics"], TrainingOutput(folder / "two").read_evaluation()
    assert expected["samples"] == 33
    assert set(measured) == {"loss", "f1", "auc", "perplexity", "found", "accuracy"}
    assert measured == pytest.approx(expected["metrics"], rel=1e-5)


def test_a_process_without_samples_to_validate_does_not_end_the_others(tmp_path: Path) -> None:
    """A metric may make its variables when it sees samples, which all processes do together."""
    ports = free_ports(2)
    settings = {**SETTINGS.to_dict(), "epochs": 1, "batch_size": 4, "validation_split": "single"}
    flags = TrainConfig.from_dict(settings).to_flags()
    end(*(start_program("train", tmp_path, "few", *flags, TF_CONFIG=tf_config(ports, index)) for index in range(2)))
    assert round(newest(tmp_path / "few").manifest["metrics"]["f1"], 3) in (0.0, 0.5)


def test_a_step_of_two_processes_is_the_step_of_one_with_twice_the_batch(folder: Path) -> None:
    two, one = tensorflow_parameters(*(newest(folder / name).path for name in ("two", "one")))
    assert two.keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-5, err_msg=name)


def test_the_schedule_scales_the_peak_of_the_own_optimizer(folder: Path) -> None:
    rows = [row for row in read_metrics(folder / "two" / "metrics.jsonl") if "loss" in row]
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.02 / step for step in range(1, 7)])
    assert newest(folder / "two").progress.samples_seen == 2 * 22, "the sampler says how long an epoch is"


def test_what_the_next_epoch_lacks_is_an_error_after_this_one(tmp_path: Path) -> None:
    changes = {"epochs": 3, "batch_size": 8, "model": "support.free_keras_tasks:build_with_a_short_epoch"}
    flags = TrainConfig.from_dict({**SETTINGS.to_dict(), **changes}).to_flags()
    training = start_program("train", tmp_path, "late", *flags)
    log, _ = training.communicate(timeout=150)
    assert training.returncode not in (0, None), log
    assert "sampler(2) returned 10 samples, but sampler(0) 22: return the same number for each epoch" in log
    assert [row["step"] for row in read_metrics(tmp_path / "late" / "metrics.jsonl") if "loss" in row] == [*range(1, 7)]
