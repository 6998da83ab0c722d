"""Tasks with optimizers, schedules, samplers, steps, data and metrics of their own, trained in one process."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kubetrain_trainer import Step
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from support.process_groups import start_python
from support.training import assert_same, newest, state_of

TRAIN = """
import json, logging, sys
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.processes.entry_point import training_arguments
from kubetrain_trainer.pytorch_ddp.evaluate import evaluate
from kubetrain_trainer.pytorch_ddp.train import train

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
CheckpointWriter.is_free = lambda writer, step: writer.wait() is None  # skip no checkpoint
outcomes = {}
for name, flags in json.loads(sys.argv[1]).items():
    sys.argv[1:] = ["--data-dir", ".", "--output-dir", f"output/{name}", *flags]
    try:
        arguments = training_arguments("")
        train(arguments)
        evaluate(arguments)
        outcomes[name] = "completed"
    except Exception as error:
        outcomes[name] = f"{type(error).__name__}: {error}"
print("outcomes:", json.dumps(outcomes))
"""
DOCUMENTED = """
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam
from kubetrain_trainer import Step
from support.free_tasks import Gan, plain

SNIPPETS

def build(config, data_dir):
    return plain(config, model=Gan(), step=adversarial, METRICS, OPTIMIZER)
"""
SETTINGS: dict[str, Any] = {
    **{"model": "support.free_tasks:build", "batch_size": 8, "epochs": 4, "checkpoint_every": 4, "log_every": 1},
    **{"metrics_port": 0, "warmup_epochs": 0, "metric": "loss", "keep_checkpoints": 100, "precision": "fp32"},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "optimizers": {},
    "ahead": {"epochs": 3, "loader_workers": 2},
    "groups": {"batch_size": 16, "base_batch_size": 8},
    "collate": {"gradient_accumulation": 2},
    "stream": {"max_steps": 24, "epochs": 3},
    "sized": {},
    "batches": {"gradient_accumulation": 2},
    "forgetful": {"max_steps": 12},
    "gan": {"epochs": 2},
    "dropout": {"loader_workers": 1},
    "evaluating": {"epochs": 1, "checkpoint_every": 2},
    "one-optimizer": {},
    "broadcast": {"epochs": 1},
    "documented": {"model": "documented:build", "metric": "min:perplexity"},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "stream": ({}, "max_steps must be set, because the training data has no len()"),
    "empty": ({}, "the training data yields no samples when it is read from its beginning"),
    "batches": ({"batch_size": 4}, "yields a batch of 8 samples, but train.batch_size is 4"),
    "collated-batches": ({}, "collate has no use: remove it"),
    "batches-without-tensors": ({"max_steps": 4}, "the data yields a batch without tensors"),
    "indexed-batches": ({}, "[index] has no use: remove it"),
    "unvalidated": ({}, "the split to evaluate has no samples"),
    "complicated": ({}, "state_dict() of the training data must consist of numbers"),
    "lambda": ({}, "samples.scales['twice'] (Scaled.__init__.<locals>.<lambda>) cannot be sent to the processes"),
    "gan": ({"gradient_accumulation": 2}, "gradient_accumulation must be 1"),
    "documented": (
        {"model": "documented:build", "compile": "reduce-overhead"},
        "compile cannot be reduce-overhead, because the task's own step may use what a CUDA graph overwrites",
    ),
    "nan-step": ({}, "the gradient is nan at step 3"),
    "broadcast-by-torch": ({}, "UserWarning: Using a target size (torch.Size([8])) that is different"),
    "losses-step": ({}, "the loss that the task's own step returned has shape (8,)"),
    "late-sampler": (
        {"loader_workers": 2},
        "sampler(2) returned 10 samples, but sampler(0) 45: return the same number for each epoch",
    ),
    "random-sampler": ({}, "sampler(0) returned other samples when it was called again"),
}
RESUMED = {"optimizers": 4, "sized": 8, "batches": 8, "stream": 12, "gan": 4, "dropout": 4}
"""Trainings that start again from the checkpoint of this step, in the middle of an epoch."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("free-tasks")
    (folder / "documented.py").write_text(documented())
    return folder


def documented() -> str:
    """Return a module with all snippets of the section."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    page = page.partition("## Train your own model")[2].partition("\n## ")[0]
    snippets = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    [metrics], [optimizer] = (re.findall(rf"`({name}=.*?)`", page) for name in ("metrics", "optimizer"))
    return DOCUMENTED.replace("SNIPPETS", snippets).replace("METRICS", metrics).replace("OPTIMIZER", optimizer)


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> Mapping[str, str]:
    """Return how each training ended."""
    refused = {f"refused-{name}": (name, settings) for name, (settings, _) in REFUSED.items()}
    trained = {name: (name, settings) for name, settings in TRAININGS.items()}
    more = {"lambda-in-one-process": ("lambda", {"loader_workers": 0})}
    return train(folder, {**trained, **refused, **more})


def train(folder: Path, trainings: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Mapping[str, str]:
    flags = {
        run: flags_of({**SETTINGS, "model_args": {"task": task}, **settings})
        for run, (task, settings) in trainings.items()
    }
    process = start_python("-c", TRAIN, json.dumps(flags), cwd=folder)
    log, _ = process.communicate(timeout=150)
    assert process.returncode == 0, log
    (folder / ("log" if (folder / "first-log").exists() else "first-log")).write_text(log)
    outcomes: dict[str, str] = json.loads(log.rpartition("outcomes: ")[2])
    return outcomes


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    return [
        part
        for name, value in settings.items()
        for part in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value))
    ]


def steps_of(folder: Path, run: str) -> list[dict[str, Any]]:
    return [row for row in read_metrics(folder / "output" / run / "metrics.jsonl") if "loss" in row]


@pytest.mark.parametrize("run", [*TRAININGS, "lambda-in-one-process"])
def test_it_trains_and_is_evaluated(run: str, outcomes: Mapping[str, str]) -> None:
    assert outcomes[run] == "completed"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused(name: str, outcomes: Mapping[str, str]) -> None:
    _, reason = REFUSED[name]
    assert reason in outcomes[f"refused-{name}"]


@pytest.fixture(scope="module")
def resumed(folder: Path, outcomes: Mapping[str, str]) -> Mapping[str, str]:
    """Return how trainings ended that were interrupted, as if they had been killed after a checkpoint."""
    for name, step in RESUMED.items():
        again = folder / "output" / f"{name}-again"
        shutil.copytree(folder / "output" / name, again)
        shutil.rmtree(again / "export")
        (again / "result.json").unlink()
        for checkpoint in complete_checkpoints(TrainingOutput(again).checkpoints):
            if checkpoint.step > step:
                shutil.rmtree(checkpoint.path)
    return train(folder, {f"{name}-again": (name, TRAININGS[name]) for name in RESUMED})


@pytest.mark.parametrize("name", RESUMED)
def test_a_killed_training_ends_like_one_that_was_not(name: str, folder: Path, resumed: Mapping[str, str]) -> None:
    assert resumed[f"{name}-again"] == "completed"
    assert f"resumes from output/{name}-again/checkpoints/step-{RESUMED[name]:08}" in (folder / "log").read_text()
    before, after = newest(folder / "output" / name), newest(folder / "output" / f"{name}-again")
    assert before.progress == after.progress
    assert_same(state_of(before), state_of(after))
    assert steps_of(folder, name)[-1]["loss"] == steps_of(folder, f"{name}-again")[-1]["loss"]


def test_dropout_drops_other_units_at_each_step_and_the_same_after_a_restart(
    folder: Path, resumed: Mapping[str, str]
) -> None:
    dropped = (folder / "dropped-0").read_text().splitlines()
    undisturbed, again = dropped[:24], dropped[24:]
    assert len(set(undisturbed)) == 24
    assert again == undisturbed[4:]


def test_the_gradient_of_an_own_step_is_measured_before_it_is_clipped() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = own_step(model=model, optimizer=optimizer, clip_norm=0.5)
    before = model.weight.detach().clone()
    step.update(step.mean(model(torch.tensor([[3.0, 4.0]]))))
    assert [float(norm) for norm in step.norms] == [5.0]
    assert float((model.weight.detach() - before).norm()) == pytest.approx(0.5)


def own_step(**parts: Any) -> Step:
    device = torch.device("cpu")
    fixed = {"inputs": None, "targets": None, "number": 1, "rate_factor": 1.0, "device": device, "bf16": False}
    return Step(**{**fixed, "weight": 1.0, **parts})


def groups_of(folder: Path, run: str, *optimizer: str) -> list[dict[str, Any]]:
    state = state_of(newest(folder / "output" / run))["optimizer"]
    for name in optimizer:
        state = state[name]
    groups: list[dict[str, Any]] = state["param_groups"]
    return groups


def test_each_group_of_own_optimizers_has_its_own_peak(folder: Path, outcomes: Mapping[str, str]) -> None:
    rates = [row["learning_rate"] for row in steps_of(folder, "optimizers")]
    assert rates == [0.5 * 0.5 ** (step // 10) for step in range(1, 13)], "the schedule alone changes the rate"
    assert [group["lr"] for group in groups_of(folder, "optimizers", "first")] == [0.25]
    assert [group["lr"] for group in groups_of(folder, "optimizers", "last")] == [0.01, 0.005]


def test_groups_replace_settings_of_the_chosen_optimizer(folder: Path, outcomes: Mapping[str, str]) -> None:
    decays = [(group["weight_decay"], group["momentum"]) for group in groups_of(folder, "groups")]
    assert decays == [(5e-4, 0.9), (0.0, 0.9)]
    rows = [row["learning_rate"] for row in steps_of(folder, "groups")]
    assert max(rows) > 0.7, "a group's own rate is scaled to the global batch, too"
    assert [group["lr"] for group in groups_of(folder, "groups")] == pytest.approx([rows[-1], rows[-1] / 4])


def test_a_sampler_says_how_long_an_epoch_is(folder: Path, outcomes: Mapping[str, str]) -> None:
    assert newest(folder / "output" / "optimizers").progress.samples_seen == 4 * 22


def test_the_next_epoch_is_loaded_before_this_one_ends(folder: Path, outcomes: Mapping[str, str]) -> None:
    order = (folder / "order").read_text().splitlines()
    assert [order.index(f"epoch {epoch}") < order.index(f"step {6 * epoch - 1}") for epoch in (1, 2)] == [True] * 2
    assert order[-1] == "step 18"
    assert "epoch 3" not in order


def test_what_the_next_epoch_lacks_is_an_error_after_this_one(folder: Path, outcomes: Mapping[str, str]) -> None:
    assert steps_of(folder, "refused-late-sampler")[-1]["step"] == 12


def test_max_steps_is_the_whole_training_if_the_data_has_no_length(folder: Path, outcomes: Mapping[str, str]) -> None:
    rows = steps_of(folder, "stream")
    assert len(rows) == 24
    assert [row["epoch"] for row in rows][7::8] == [1, 2, 3]
    assert 0 < rows[-1]["learning_rate"] < rows[0]["learning_rate"] / 100, "the schedule ends after the training"


def test_the_model_is_in_training_mode_before_the_first_step_and_after_each_validation(
    folder: Path, outcomes: Mapping[str, str]
) -> None:
    validation = "E" * 5
    assert (folder / "modes").read_text() == f"TT{validation}" * 3 + validation, "the last is the evaluation"


def test_what_the_page_shows_trains(folder: Path, outcomes: Mapping[str, str]) -> None:
    assert outcomes["documented"] == "completed"
    assert newest(folder / "output" / "documented").manifest["metrics"]["perplexity"] > 1
    assert groups_of(folder, "documented", "discriminator")


@pytest.mark.parametrize(
    "warned",
    [
        "the training data has no state_dict(): a run that resumes reads it from its beginning again",
        "no optimizer has 2 of the model's parameters, such as 2.weight",
        "the loss of a sample depends on the others of its batch: unless it is meant to, as in contrastive learning",
    ],
)
def test_what_may_surprise_is_said(warned: str, folder: Path, outcomes: Mapping[str, str]) -> None:
    assert warned in (folder / "first-log").read_text()
