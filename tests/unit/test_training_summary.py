"""The summary of a training job on the run's page."""

from dataclasses import replace
from pathlib import Path

import yaml

from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.summary import training_summary
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_trainer.settings.config import TrainConfig

TIME = {"seconds": {"queue": 90.0, "training": 10.0}, "gpu_hours": 0.25, "cpu_hours": 1.0}
RESULT = {"checkpoint": "step-00000120", "step": 120, "time": TIME}


def training(launcher: Launcher = Launcher.AUTO) -> TrainingJob:
    place = DatasetPlace(digest="0123456789abcdef", claim="ds", sub_path="versions/0123456789abcdef/data")
    return TrainingJob(
        framework="tensorflow",
        config=TrainConfig(),
        pipeline="train-tensorflow",
        run_id="r1",
        data_dir=Path("/data"),
        output_dir=Path("/output/r1"),
        dataset_digest=place.digest,
        workers=3,
        launcher=launcher,
        placement=Placement(image="trainer:1"),
        mounts=place.mounts("out"),
    )


def test_it_names_the_job_how_it_went_and_what_was_created() -> None:
    text = training_summary(training(), RESULT, {"startup": 7.4}, "step=120/120 loss=0.1")
    name = training().identity.name
    assert text.startswith(f"# {name}\n")
    assert f"| job | TFJob `{name}` |" in text
    assert "| launcher | training-operator |" in text
    assert "| pods | 3, each with 1 process |" in text
    assert "| last checkpoint | `step-00000120`, after 120 steps |" in text
    assert "| output | folder `r1` of PVC `out` |" in text
    assert "| startup | 7 s |" in text
    assert "| final progress line | `step=120/120 loss=0.1` |" in text
    assert "| cost | 0.25 GPU-hours |" in text
    assert "| waiting in a queue or for nodes | 1 min 30 s | 90% |\n| training steps | 10.0 s | 10% |" in text
    assert "Largest losses:\n\n- 1 min 30 s (90%), waiting in a queue" in text
    assert f"kubectl get tfjob {name} --output=yaml" in text
    manifest = yaml.safe_load(text.split("```yaml\n")[1].removesuffix("```\n"))
    assert manifest["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 2


def test_what_a_training_writes_does_not_change_the_page() -> None:
    said = "<img src=x> | `step` 1\nstep 2"
    text = training_summary(training(), {**RESULT, "network": said}, {}, said)
    assert "| network | &lt;img src=x&gt; &#124; 'step' 1 step 2 |" in text
    assert "| final progress line | `&lt;img src=x&gt; &#124; 'step' 1 step 2` |" in text


def test_a_secret_among_the_variables_is_not_shown() -> None:
    env = {"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx", "NCCL_DEBUG": "INFO"}
    secret = replace(training(), placement=Placement(image="trainer:1", env=env))
    text = training_summary(secret, RESULT, {}, "")
    assert "hf_abc" not in text
    assert "value: INFO" in text
    assert secret.to_job().spec_hash in text, "the manifest is otherwise that of the job"


def test_the_manifest_of_a_job_without_an_operator_has_what_is_created_beside_it() -> None:
    text = training_summary(training(Launcher.TRAINER), RESULT, {}, "")
    assert "| launcher | trainer |" in text
    runtime, job = yaml.safe_load_all(text.split("```yaml\n")[1].removesuffix("```\n"))
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")


def test_it_says_how_the_processes_were_connected() -> None:
    text = training_summary(training(), {**RESULT, "network": "gloo over eth0"}, {}, "")
    assert "| network | gloo over eth0 |" in text
