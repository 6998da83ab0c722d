"""compiled/*.yaml are current, reproducible byte for byte, and contain nothing of this machine."""

import inspect
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.run.names import FORM_FIELDS
from kubetrain_components.run.stages import STAGES
from kubetrain_components.sync_dataset.component import sync_dataset
from kubetrain_pipelines.definitions.compile import MAX_FILE_BYTES
from kubetrain_pipelines.definitions.compiled_file import CompiledFile
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, REQUIRED, parameters_of
from kubetrain_trainer.settings.base import kind_of
from support.cli import kubetrain

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "compiled"
NAMES = ["sync_only.yaml", "train_pytorch.yaml", "train_tensorflow.yaml"]


def test_the_committed_files_are_current() -> None:
    assert sorted(path.name for path in COMPILED.iterdir()) == NAMES
    finished = kubetrain("compile", "--check", cwd=ROOT)
    assert finished.exit_code == 0, finished.output


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_every_run_and_hash_seed_compiles_the_same_bytes(tmp_path: Path, seed: str) -> None:
    canaries = {"AWS_SECRET_ACCESS_KEY": "canary-in-environment", "CANARY_SECRET": "canary-in-environment"}
    finished = kubetrain("compile", "--output", tmp_path, PYTHONHASHSEED=seed, **canaries)
    assert finished.exit_code == 0
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == (COMPILED / name).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_small_and_holds_nothing_of_this_machine(name: str) -> None:
    content = (COMPILED / name).read_text()
    assert len(content.encode()) < 64 * 1024 < MAX_FILE_BYTES == 128 * 1024
    for foreign in (str(ROOT), str(Path.home()), sys.prefix, "canary", os.uname().nodename):
        assert foreign not in content


def test_an_output_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finished = kubetrain("compile", "--output", tmp_path / "file")
    assert finished.exit_code == 1
    assert f"error: cannot write to {tmp_path / 'file'} (File exists)" in finished.output


def test_compiling_twice_writes_nothing_the_second_time(tmp_path: Path) -> None:
    first, second = (kubetrain("compile", "--output", tmp_path / "compiled") for _ in range(2))
    assert first.output.count("wrote ") == 3
    assert "warning: no registry has registry.invalid/kubetrain/components:0.1.0" in first.output
    assert second.output == f"{tmp_path / 'compiled'} is up to date\n"


class TestDrift:
    @pytest.fixture
    def compiled(self, tmp_path: Path) -> Path:
        return Path(shutil.copytree(COMPILED, tmp_path / "compiled"))

    def check(self, compiled: Path) -> str:
        finished = kubetrain("compile", "--check", "--output", compiled)
        assert finished.exit_code == 1
        return finished.output

    def test_an_edited_file_fails_with_a_readable_diff(self, compiled: Path) -> None:
        file = compiled / "train_pytorch.yaml"
        file.write_text(file.read_text().replace("Train on several pods", "Train on one pod"))
        output = self.check(compiled)
        assert "run `kubetrain compile`" in output
        assert "-          name: Train on one pod" in output
        assert "+          name: Train on several pods" in output
        assert str(file) in output
        assert "sync_only" not in output

    def test_a_missing_file_is_named(self, compiled: Path) -> None:
        (compiled / "sync_only.yaml").unlink()
        assert f"{compiled / 'sync_only.yaml'} is missing" in self.check(compiled)

    def test_a_file_without_a_pipeline_is_named(self, compiled: Path) -> None:
        (compiled / "old.yaml").write_text("")
        named = f"{compiled / 'old.yaml'}: no pipeline compiles to this file: delete it"
        assert self.check(compiled) == f"error: {named}\n", "compiling again would not help"
        assert kubetrain("compile", "--output", compiled).output == f"{named}\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_task_runs_in_our_image_and_is_never_cached(name: str) -> None:
    spec = next(yaml.safe_load_all((COMPILED / name).read_text()))
    tasks = spec["root"]["dag"]["tasks"]
    assert all("enableCache" not in task.get("cachingOptions", {}) for task in tasks.values())
    images = {each["container"]["image"] for each in spec["deploymentSpec"]["executors"].values()}
    assert images == {"registry.invalid/kubetrain/components:0.1.0"}
    assert "pip install" not in (COMPILED / name).read_text(), "an image is complete: nothing is installed at start"


@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_gets_every_field_and_the_others_the_settings_that_it_checked(name: str) -> None:
    root = next(yaml.safe_load_all((COMPILED / name).read_text()))["root"]
    inputs = {task: each["inputs"]["parameters"] for task, each in root["dag"]["tasks"].items()}
    fields = {field: {"componentInputParameter": field} for field in root["inputDefinitions"]["parameters"]}
    assert inputs["sync-dataset"].items() >= fields.items()
    checked = {"taskOutputParameter": {"outputParameterKey": "run", "producerTask": "sync-dataset"}}
    others = {"launch-training", "collect-checkpoint", "evaluate-model", "promote-model"} & inputs.keys()
    assert {task for task, given in inputs.items() if given.get("run") == checked} == others


def test_the_first_step_takes_the_fields_of_all_forms_with_their_defaults() -> None:
    forms = {item.name: item.default for pipeline in PIPELINES for item in reversed(parameters_of(pipeline))}
    taken = inspect.signature(sync_dataset.python_func).parameters
    of_step = {"pipeline", "run_id", "framework", "components_image", "trainer_image", "dataset"}
    assert taken.keys() == forms.keys() | of_step
    optional = forms.keys() - {"data_uri", "model_uri"}
    assert {name: taken[name].default for name in optional} == {name: forms[name] for name in optional}


def pod_settings(name: str) -> dict[str, Any]:
    """Return the pod settings by task."""
    platform = list(yaml.safe_load_all((COMPILED / name).read_text()))[1]
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return {executor.removeprefix("exec-"): settings for executor, settings in executors.items()}


def test_every_pod_has_a_deadline_and_no_root() -> None:
    for settings in (each for name in NAMES for each in pod_settings(name).values()):
        assert settings["securityContext"] == {"runAsNonRoot": True}
        assert int(settings["activeDeadlineSeconds"]) == 30 * 24 * 3600


def test_steps_that_follow_jobs_are_not_evicted_and_steps_that_read_the_output_mount_it() -> None:
    by_task = pod_settings("train_pytorch.yaml")
    budget = yaml.safe_load((ROOT / "deploy/launcher/disruption_budget.yaml").read_text())
    launchers = {task for task, each in by_task.items() if "podMetadata" in each}
    assert launchers == {"sync-dataset", "launch-training", "evaluate-model"}
    assert by_task["launch-training"]["podMetadata"] == {
        "labels": budget["spec"]["selector"]["matchLabels"],
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        },
    }
    readers = {task for task, each in by_task.items() if "pvcMount" in each}
    assert readers == {"collect-checkpoint", "evaluate-model", "promote-model"}
    (secret,) = by_task["promote-model"]["secretAsEnv"]
    assert secret["optional"] is True


def test_we_set_no_resources_on_the_launch_task_because_they_would_apply_to_the_training_pods() -> None:
    spec = next(yaml.safe_load_all((COMPILED / "train_pytorch.yaml").read_text()))
    executors = spec["deploymentSpec"]["executors"]
    assert {name for name, each in executors.items() if "resources" not in each["container"]} == {
        "exec-launch-training"
    }
    passed_on = spec["components"]["comp-launch-training"]["taskConfigPassthroughs"]
    assert {each["field"] for each in passed_on} == {
        *("RESOURCES", "ENV", "KUBERNETES_AFFINITY", "KUBERNETES_TOLERATIONS", "KUBERNETES_NODE_SELECTOR"),
        "KUBERNETES_VOLUMES",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_field_has_the_type_the_default_and_the_choices_of_its_setting(name: str) -> None:
    """A field at the default of its setting counts as not set. The form offers literals as a dropdown."""
    compiled = {item.name: item for item in CompiledFile.read(COMPILED / name).parameters}
    declared = {item.name: item for item in parameters_of(name.removesuffix(".yaml").replace("_", "-"))}
    parameters = next(yaml.safe_load_all((COMPILED / name).read_text()))["root"]["inputDefinitions"]["parameters"]
    offered = {field: tuple(each.get("literals", ())) for field, each in parameters.items()}
    assert {field: replace(item, choices=offered[field]) for field, item in compiled.items()} == declared
    settings = {field: FORM_FIELDS[field] for field in declared.keys() & FORM_FIELDS.keys() - {"train_entry"}}
    assert {"data_uri", "storage_class"} < settings.keys()
    for field, setting in settings.items():
        default = REQUIRED if setting.field.metadata["is_required"] else setting.default
        choices = (True, False) if kind_of(setting.field) is bool else setting.field.metadata["choices"]
        assert (compiled[field].default, offered[field]) == (default, choices), field


def test_the_stages_follow_each_other() -> None:
    spec = next(yaml.safe_load_all((COMPILED / "train_pytorch.yaml").read_text()))
    tasks = spec["root"]["dag"]["tasks"]
    order = [stage.name.replace("_", "-") for stage in STAGES]
    assert sorted(tasks) == sorted(order)
    assert [tasks[name]["taskInfo"]["name"] for name in order] == [stage.title for stage in STAGES]
    for before, after in pairwise(order):
        assert before in tasks[after]["dependentTasks"]


def test_compiling_imports_no_framework() -> None:
    program = (
        "import sys; from kubetrain_pipelines.definitions.compile import OutputFormat, compiled_pipelines as compiled; "
        "compiled(OutputFormat()); "
        "print([name for name in ('torch', 'tensorflow', 'boto3', 'kubernetes') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() in ("[]", "['kubernetes']"), "kfp itself brings kubernetes"


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_step_waits_only_for_steps_whose_outputs_it_takes(name: str) -> None:
    """The UI draws an edge for each."""
    tasks = next(yaml.safe_load_all((COMPILED / name).read_text()))["root"]["dag"]["tasks"]
    for task in tasks.values():
        inputs = [each for kind in task["inputs"].values() for each in kind.values()]
        taken = [each.get("taskOutputParameter", each.get("taskOutputArtifact")) for each in inputs]
        assert {each["producerTask"] for each in taken if each} == set(task.get("dependentTasks", ()))
    assert {name: task.get("dependentTasks", []) for name, task in tasks.items()} == {
        "sync-dataset": [],
        "launch-training": ["sync-dataset"],
        "collect-checkpoint": ["launch-training", "sync-dataset"],
        "evaluate-model": ["collect-checkpoint", "launch-training", "sync-dataset"],
        "promote-model": ["evaluate-model", "launch-training", "sync-dataset"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_artifacts_have_the_names_that_the_graph_shows(name: str) -> None:
    components = next(yaml.safe_load_all((COMPILED / name).read_text()))["components"].values()
    shown = [artifact for each in components for artifact in each.get("outputDefinitions", {}).get("artifacts", {})]
    of_training = ["training", "model", "test_metrics", "test_report", "confusion_matrix", "publication"]
    assert sorted(shown) == sorted(["dataset", *(of_training if name != "sync_only.yaml" else [])])


def test_steps_mount_no_output_claim_if_the_output_is_in_a_store() -> None:
    file = CompiledFile.find("train-pytorch")
    assert file.content.count(b"mountPath: /output") == 3
    without = file.without_output_claim()
    assert b"/output" not in without.content.replace(b"https://", b"")
    assert (without.name, without.version) != (file.name, file.version)
    spec, platform = yaml.safe_load_all(without.content)
    assert spec == file.spec
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert (
        executors.keys()
        == list(yaml.safe_load_all(file.content))[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"].keys()
    )
