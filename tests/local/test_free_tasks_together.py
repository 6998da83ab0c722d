"""Tasks with parts of their own in two processes, which train and measure as one process does."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start, start_ranks
from support.training import assert_same, newest, state_of

pytestmark = pytest.mark.slow

TRAIN = """
import json, logging, os, sys
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.processes.entry_point import training_arguments
from kubetrain_trainer.failures import explain
from kubetrain_trainer.pytorch_ddp.train import train

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
CheckpointWriter.is_free = lambda writer, step: writer.wait() is None  # skip no checkpoint
ports = iter(os.environ["PORTS"].split())
for name, flags in json.loads(os.environ["TRAININGS"]).items():
    os.environ["MASTER_PORT"] = next(ports)
    sys.argv[1:] = ["--data-dir", ".", "--output-dir", f"output/{name}", *flags]
    try:
        train(training_arguments(""))
        print(f"{name} completed", flush=True)
    except Exception as error:
        print(f"{name} failed: {explain(error) or error}", flush=True)
"""
EVALUATE = """
import sys
from kubetrain_trainer.processes.entry_point import evaluation_arguments
from kubetrain_trainer.pytorch_ddp.evaluate import evaluate
evaluate(evaluation_arguments(""))
"""
SETTINGS = TrainConfig(
    model="support.free_tasks:build",
    batch_size=4,
    epochs=2,
    warmup_epochs=0,
    checkpoint_every=4,
    keep_checkpoints=100,
    metric="loss",
    metrics_port=0,
    precision="fp32",
    test_split="val",
)


def run_group(folder: Path, world_size: int, **trainings: Mapping[str, Any]) -> list[str]:
    """Train in one or two processes, one training after the other, and return their logs."""
    configs = {name: TrainConfig.from_dict({**SETTINGS.to_dict(), **each}) for name, each in trainings.items()}
    processes = start_ranks(TRAIN, folder, world_size, configs)
    logs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * world_size, logs
    return logs


def task(name: str, **settings: Any) -> dict[str, Any]:
    return {"model_args": {"task": name}, **settings}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def logs(folder: Path) -> list[str]:
    """The logs of both processes. The last training fails and leaves them without a group."""
    tasks = {"metrics": task("metrics"), "gan": task("gan"), "sized": task("sized"), "found": task("head-found")}
    return run_group(folder, 2, **tasks, dropout=task("dropout", loader_workers=1), head=task("head"))


@pytest.mark.thorough
def test_metrics_of_two_processes_are_those_of_the_undivided_split(folder: Path, logs: list[str]) -> None:
    pytest.importorskip("torchmetrics")
    measured = newest(folder / "output" / "metrics").manifest["metrics"]
    arguments = ["--data-dir", ".", "--output-dir", "output/metrics"]
    program = f"import sys; sys.argv[1:] = {arguments}{EVALUATE}"
    evaluation = start(program, folder)
    log, _ = evaluation.communicate(timeout=60)
    assert evaluation.returncode == 0, log
    expected = TrainingOutput(folder / "output" / "metrics").read_evaluation()
    assert expected["step"] == newest(folder / "output" / "metrics").step
    assert expected["samples"] == 33
    assert set(measured) == {"loss", "f1", "auc", "mean_average_precision", "perplexity", "accuracy"}
    assert measured == pytest.approx(expected["metrics"], rel=1e-6)
    assert len({round(value, 4) for value in measured.values()}) == len(measured), "they differ from one another"


def test_an_own_step_of_two_processes_is_the_step_of_one_with_twice_the_batch(folder: Path, logs: list[str]) -> None:
    run_group(folder, 1, alone=task("gan", batch_size=8))
    two, one = (state_of(newest(folder / "output" / name)) for name in ("gan", "alone"))
    assert_same(two["model"], one["model"], tolerance=1e-6)
    assert "frozen.weight" in one["model"]


def test_dropout_drops_other_units_in_each_process_and_at_each_step(folder: Path, logs: list[str]) -> None:
    dropped = [(folder / f"dropped-{rank}").read_text().splitlines() for rank in range(2)]
    assert [len(each) for each in dropped] == [12, 12]
    assert len({*dropped[0], *dropped[1]}) == 24


def cut(folder: Path, name: str) -> None:
    """Copy the output of the stream, without what was written after its second checkpoint."""
    output = folder / "output" / name
    shutil.copytree(folder / "output" / "sized", output)
    shutil.rmtree(output / "export")
    (output / "result.json").unlink()
    for checkpoint in complete_checkpoints(TrainingOutput(output).checkpoints)[2:]:
        shutil.rmtree(checkpoint.path)


def test_each_process_continues_at_its_own_position_in_a_stream(folder: Path, logs: list[str]) -> None:
    cut(folder, "again")
    logs = run_group(folder, 2, again=task("sized"))
    assert all("again/checkpoints/step-00000008" in log for log in logs)
    before, after = (state_of(newest(folder / "output" / name)) for name in ("sized", "again"))
    assert_same(after, before)
    first, second = after["positions"]
    assert first["batches"] == second["batches"] == 10
    assert first["state"] != second["state"], "each has its own"


def test_another_number_of_processes_reads_a_stream_from_its_beginning(folder: Path, logs: list[str]) -> None:
    cut(folder, "shrunk")
    [log] = run_group(folder, 1, shrunk=task("sized"))
    assert "is read from its beginning: its position was saved by 2 processes, and 1 resume" in log
    assert "shrunk completed" in log


@pytest.mark.thorough
def test_a_stream_is_the_same_if_another_process_reads_ahead(folder: Path) -> None:
    run_group(folder, 1, here=task("sized", loader_workers=0), ahead=task("sized", loader_workers=1))
    here, ahead = (state_of(newest(folder / "output" / name)) for name in ("here", "ahead"))
    assert_same(ahead, here)


def test_a_parameter_that_a_step_leaves_out_is_explained(folder: Path, logs: list[str]) -> None:
    assert all("found completed" in log for log in logs)
    for log in logs:
        assert "head failed: a parameter of the model took no part in the loss" in log
        assert "set find_unused_parameters=True in the Task" in log
