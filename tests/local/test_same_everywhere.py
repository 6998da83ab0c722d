"""Processes that read other data, or train another model, than each other: nothing of this is saved."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.loading import Loader, seed_generators
from kubetrain_trainer.settings.config import TrainConfig
from support.free_tasks import Points, Restless
from support.process_groups import start_ranks

pytestmark = pytest.mark.slow

TRAIN = """
import json, logging, os, sys
from torch import distributed
from kubetrain_trainer.processes.entry_point import training_arguments
from kubetrain_trainer.pytorch_ddp.train import train

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
ports, outcomes = iter(os.environ["PORTS"].split()), {}
for name, flags in json.loads(os.environ["TRAININGS"]).items():
    os.environ["MASTER_PORT"] = next(ports)
    os.environ["NODE_NAME"] = "n" + os.environ["RANK"]
    sys.argv[1:] = ["--data-dir", ".", "--output-dir", f"output/{name}", *flags]
    try:
        train(training_arguments(""))
        outcomes[name] = "completed"
    except Exception as error:
        outcomes[name] = f"{error} (curable: {getattr(error, 'is_curable', None)})"
        distributed.destroy_process_group()
print("outcomes:", json.dumps(outcomes))
"""
SETTINGS = TrainConfig(
    model="support.free_tasks:build",
    batch_size=4,
    warmup_epochs=0,
    checkpoint_every=3,
    epochs=1,
    metric="loss",
    metrics_port=0,
    precision="fp32",
)
TASKS = {
    **{name: {} for name in ("fewer", "unsorted", "unwrapped", "without-update", "faulty", "wrapped", "sized")},
    "restless": {"loader_workers": 1},
    "dropout": {"loader_workers": 1},
    "plain": {"sharding": "full"},
}


def run(folder: Path) -> list[dict[str, str]]:
    """Train in two processes, and return how each training ended in each of them."""
    own = {name: {"model_args": {"task": name}, **settings} for name, settings in TASKS.items()}
    configs = {name: TrainConfig.from_dict({**SETTINGS.to_dict(), **each}) for name, each in own.items()}
    logs = [each.communicate(timeout=120)[0] for each in start_ranks(TRAIN, folder, 2, configs)]
    return [json.loads(log.rpartition("outcomes: ")[2]) for log in logs]


def draw_numbers() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, str]:
    first, second = run(folder)
    assert first == second
    return first


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("fewer", "the number of training samples is 46 in rank 1 on node n1, and 45 in rank 0 on node n0: each"),
        ("unsorted", "the mean of some training samples is "),
        ("unwrapped", " in rank 0 on node n0: let the task's own step call step.model"),
        ("without-update", "the task's own step has not changed the model in 3 steps: call step.update(loss), or"),
        ("faulty", " in rank 0 on node n0: look for a faulty GPU or faulty memory there (curable: True)"),
    ],
)
def test_what_differs_is_named_and_not_saved(task: str, said: str, folder: Path, outcomes: dict[str, str]) -> None:
    assert said in outcomes[task]
    saved = [each.step for each in complete_checkpoints(folder / "output" / task / "checkpoints")]
    assert saved == ([3] if task == "faulty" else [])
    assert ("(curable: False)" in outcomes[task]) == (task != "faulty")


@pytest.mark.parametrize("task", ["wrapped", "restless", "sized", "dropout", "plain"])
def test_what_may_differ_trains(task: str, outcomes: dict[str, str]) -> None:
    assert outcomes[task] == "completed"


def test_drawing_samples_to_compare_leaves_random_numbers_as_they_are() -> None:
    loaders = [Loader(data("train"), SETTINGS, ProcessRole(), torch.device("cpu")) for data in (Points, Restless)]
    seed_generators(7)
    expected = draw_numbers()
    seed_generators(7)
    (one, other), (noisy, another) = (loader.draw([3, 44, 3]) for loader in loaders)
    assert draw_numbers() == expected
    assert one == other > 0
    assert noisy != another
