"""The setting `entry`: a script or command of your own in place of the trainer's loop."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.run.check_imports import import_jobs
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import in_image
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.entry import Entry, parse_entry
from support.manifests import templates_in

SCRIPT = {"script": "train.py", "args": ["--epochs", 3, "--rate=0.1"]}
COMMAND = {"command": ["torchrun", "train.py"]}


def test_numbers_of_a_command_line_are_text() -> None:
    assert parse_entry(SCRIPT) == Entry(script="train.py", args=("--epochs", "3", "--rate=0.1"))
    assert parse_entry({**COMMAND, "evaluation": {"script": "test.py"}}) == Entry(
        command=("torchrun", "train.py"), evaluation=Entry(script="test.py")
    )
    assert parse_entry({}) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"args": ["--epochs=3"]}, "train.entry needs either a script or a command: write"),
        ({**SCRIPT, **COMMAND}, "train.entry needs either a script or a command: write"),
        ({**COMMAND, "args": ["--epochs=3"]}, "train.entry: args belong to a script; add them to the command"),
        ({"scrip": "train.py"}, "train.entry has an unknown key 'scrip': did you mean 'script'?"),
        ({"script": ["train.py"]}, r"train.entry.script must be a string, not \['train.py'\]"),
        ({"command": "python train.py"}, "train.entry.command must be a JSON list, such as .*, not 'python train.py'"),
        ({**SCRIPT, "args": [None]}, "each part of train.entry.args must be a string, not None"),
        ({**SCRIPT, "evaluation": {"args": []}}, "train.entry.evaluation needs either a script or a command"),
        ({**SCRIPT, "evaluation": "test.py"}, "train.entry.evaluation must be a JSON object, not 'test.py'"),
        (
            {**SCRIPT, "evaluation": {**SCRIPT, "evaluation": SCRIPT}},
            "train.entry.evaluation has an unknown key 'evaluation'",
        ),
    ],
)
def test_a_wrong_entry_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        TrainConfig(entry=entry)


def training(framework: str, entry: dict[str, Any], **changes: Any) -> TrainingJob:
    return TrainingJob(
        framework=framework,
        config=TrainConfig(entry=entry),
        pipeline="p",
        run_id="r",
        data_dir=Path("/data"),
        output_dir=Path("/output/r"),
        **changes,
    )


@pytest.mark.parametrize(
    ("framework", "entry", "programs"),
    [
        ("pytorch", {}, ["kubetrain_trainer.pytorch_ddp.launching.launch", "kubetrain_trainer.pytorch_ddp.train"]),
        (
            "pytorch",
            SCRIPT,
            ["kubetrain_trainer.pytorch_ddp.launching.launch", "kubetrain_trainer.pytorch_ddp.own_code"],
        ),
        ("pytorch", COMMAND, ["kubetrain_trainer.pytorch_ddp.own_code"]),
        ("tensorflow", SCRIPT, ["kubetrain_trainer.tensorflow_multiworker.own_code"]),
    ],
)
def test_torchrun_starts_scripts_but_not_commands(framework: str, entry: dict[str, Any], programs: list[str]) -> None:
    command = training(framework, entry).command()
    assert [after for flag, after in pairwise(command) if flag == "-m"] == programs


def test_a_command_cannot_be_elastic() -> None:
    assert training("pytorch", SCRIPT, min_workers=1).to_job().elastic
    with pytest.raises(InvalidSetting, match="a command of your own cannot tell which of its pods is the first"):
        training("pytorch", COMMAND, min_workers=1)


def parameters(entry: dict[str, Any]) -> RunParameters:
    return RunParameters(
        dataset_uri="s3://bucket/data",
        model_uri="s3://bucket/models",
        pipeline="train-pytorch",
        run_id="r",
        framework="pytorch",
        components_image="components:1",
        placement=Placement(image="trainer:1"),
        train_config=TrainConfig(entry=entry, model="what the script makes of it"),
    )


@pytest.mark.parametrize(("evaluation", "stages"), [({}, 0), ({"script": "test.py"}, 1)])
def test_only_an_evaluation_of_your_own_evaluates_the_model(evaluation: dict[str, Any], stages: int) -> None:
    planned = planned_manifests(parameters({**SCRIPT, **({"evaluation": evaluation} if evaluation else {})}))
    names = [each["metadata"]["name"] for each in planned]
    assert sum("evaluate-model" in name for name in names) == stages
    assert sum("check-imports" in name for name in names) == 1


def test_the_entry_is_tried_before_data_is_moved() -> None:
    (job,) = import_jobs(parameters(SCRIPT))
    program = ("kubetrain_trainer.own_code.check_imports", "--framework", "pytorch", "--entry")
    assert job.replicas[0].command[2:6] == program


@pytest.mark.parametrize("kind", ["check-imports", "pytorchjob", "evaluate-model"])
def test_into_an_image_of_ones_own_a_container_brings_what_runs_the_entry(kind: str) -> None:
    own = replace(parameters({**SCRIPT, "evaluation": {"script": "test.py"}}), s3_secret="keys")
    planned = planned_manifests(in_image(own, "ours"))
    (manifest,) = (each for each in planned if kind in f"{each['kind']} {each['metadata']['name']}".lower())
    for pod in (template["spec"] for template in templates_in(manifest)):
        (main,), (bringing,) = pod["containers"], pod["initContainers"]
        assert main["command"][:2] == ["python", "/kubetrain/kubetrain_trainer"]
        assert main["command"][2].startswith("kubetrain_trainer.")
        assert {"HOME", "USER"} <= {variable["name"] for variable in main["env"]}
        assert bringing["image"] == "components:1"
        assert "envFrom" not in bringing, "it needs no keys"
        assert [mount["name"] for mount in bringing["volumeMounts"]] == ["kubetrain-trainer"]


@pytest.mark.parametrize(
    ("image", "config"),
    [("", TrainConfig(entry=SCRIPT)), ("own:1", TrainConfig(model="own:build"))],
    ids=["our image", "a task"],
)
def test_where_the_trainer_is_in_the_image_nothing_brings_it(image: str, config: TrainConfig) -> None:
    run = replace(parameters(SCRIPT), placement=Placement(image=image), train_config=config)
    assert in_image(run, "ours").placement == Placement(image=image or "ours")


def test_the_last_checkpoint_of_a_script_is_its_model() -> None:
    assert TrainConfig(entry=SCRIPT).select_checkpoint == "last"
    assert TrainConfig().select_checkpoint == "best"


def test_configurations_without_an_entry_keep_their_digest() -> None:
    assert TrainConfig(entry={}).digest == TrainConfig().digest != TrainConfig(entry=SCRIPT).digest
