"""A team's own pipelines, built on ours and compiled in the team's repository."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.cli import kubetrain

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_pipeline"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "team"))


def test_its_pipelines_are_compiled_and_drift_is_detected(repository: Path) -> None:
    first = kubetrain("compile", cwd=repository)
    assert (first.exit_code, first.output) == (0, "wrote compiled/nightly.yaml\n")
    assert kubetrain("compile", "--check", cwd=repository).exit_code == 0
    source = repository / "team_pipelines" / "nightly.py"
    source.write_text(source.read_text().replace("accuracy>=0.8", "accuracy>=0.9"))
    changed = kubetrain("compile", "--check", cwd=repository)
    assert changed.exit_code == 1
    assert "constant: accuracy>=0.9" in changed.output


def test_below_its_root_the_same_pipelines_are_compiled(repository: Path) -> None:
    (repository / "docs").mkdir()
    for folder in (repository, repository / "docs"):
        assert kubetrain("compile", cwd=folder).output == "wrote compiled/nightly.yaml\n"
    above, below = ((folder / "compiled" / "nightly.yaml") for folder in (repository, repository / "docs"))
    assert above.read_bytes() == below.read_bytes()


def test_its_images_its_step_and_its_settings_of_the_launch_task(repository: Path) -> None:
    kubetrain("compile", cwd=repository)
    spec, platform = yaml.safe_load_all((repository / "compiled" / "nightly.yaml").read_text())
    executors = spec["deploymentSpec"]["executors"]
    assert {each["container"]["image"] for each in executors.values()} == {
        "registry.example.com/team/kubetrain-components:0.1.0"
    }
    tasks = spec["root"]["dag"]["tasks"]
    sync = tasks["sync-dataset"]["inputs"]["parameters"]
    assert sync["trainer_image"]["runtimeValue"]["constant"] == "registry.example.com/team/text-trainer:1"
    assert sync["pods_memory"]["runtimeValue"]["constant"] == "200Gi", "the default is too little for 8 GPUs"
    assert {"promote-model", "collect-checkpoint"} <= set(tasks["write-model-card"]["dependentTasks"])
    accelerator = executors["exec-launch-training"]["container"]["resources"]["accelerator"]
    assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("nvidia.com/gpu", "8")
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-launch-training"]
    assert settings["tolerations"][0]["key"] == "nvidia.com/gpu"


def add_task(repository: Path) -> None:
    """Let the task of another example stand for the team's."""
    (repository / "team_models").mkdir()
    shutil.copy(EXAMPLE.with_name("own_task") / "text_task.py", repository / "team_models" / "text.py")


@pytest.mark.slow
def test_it_runs_on_this_machine(repository: Path) -> None:
    """The text is one that the task learns at once."""
    add_task(repository)
    for split in ("train", "val", "test"):
        (repository / "text" / split).mkdir(parents=True)
        (repository / "text" / split / "a.txt").write_text("a" * 20_000)
    places = ("--set", "data.uri=text", "--set", "model.uri=models", "--set", "pods.processes=1")
    finished = kubetrain("run", "nightly", *places, "--set", "train.epochs=2", cwd=repository)
    assert finished.exit_code == 0, finished.output
    assert (repository / "models" / "latest.json").is_file()
    (card,) = (repository / "kubetrain-workspace" / "kfp").glob("*/write-model-card/card")
    assert card.read_text().startswith(f"# {(repository / 'models').as_uri()}/")


def test_its_own_dataset_is_the_default_on_this_machine_too(repository: Path) -> None:
    source = repository / "team_pipelines" / "nightly.py"
    source.write_text(source.read_text().replace("s3://team/text", "/no/such/text"))
    add_task(repository)
    finished = kubetrain("run", "nightly", cwd=repository)
    assert (finished.exit_code, "/no/such/text is not a directory" in finished.output) == (1, True), finished.output


def test_a_setting_that_it_does_not_offer_is_refused(repository: Path) -> None:
    finished = kubetrain("run", "nightly", "--set", "train.batch_size=8", cwd=repository)
    assert (finished.exit_code, finished.output.count("\n")) == (2, 1)
    assert "this pipeline has no setting train.batch_size" in finished.output
    assert not (repository / "kubetrain-workspace").exists()


def test_for_gitops_a_version_is_named_by_its_content(repository: Path) -> None:
    def version() -> str:
        arguments = ("compile", "--kubernetes-manifest", "--namespace", "kubeflow", "--output", "gitops")
        assert kubetrain(*arguments, cwd=repository).exit_code == 0
        pipeline, made = yaml.safe_load_all((repository / "gitops" / "nightly.yaml").read_text())
        metadata = {"name": "every-night", "namespace": "kubeflow"}
        assert (pipeline["kind"], pipeline["metadata"]) == ("Pipeline", metadata), "not the name of its function"
        assert made["spec"]["pipelineName"] == "every-night"
        return str(made["metadata"]["name"])

    source = repository / "team_pipelines" / "nightly.py"
    source.write_text(source.read_text().replace('NAME = "nightly"', 'NAME = "every-night"'))
    first = version()
    assert version() == first
    source.write_text(source.read_text().replace("accuracy>=0.8", "accuracy>=0.9"))
    assert version() != first
    assert first.startswith("every-night-")


def test_it_can_be_installed_with_its_compiled_files_as_in_its_ci(repository: Path, tmp_path: Path) -> None:
    for folder in ("compiled", "gitops"):
        (repository / folder).mkdir()
        (repository / folder / "nightly.yaml").touch()
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", tmp_path / "installed", repository]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    packages = {path.name for path in (tmp_path / "installed").iterdir() if path.suffix != ".dist-info"}
    assert packages == {"team_pipelines"}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="renders with kubectl")
def test_gitops_keeps_versions_that_are_no_longer_in_the_repository(repository: Path) -> None:
    assert kubetrain("compile", "--kubernetes-manifest", "--output", "gitops", cwd=repository).exit_code == 0
    done = subprocess.run(["kubectl", "kustomize", repository], check=True, capture_output=True, text=True)
    kept = {"kustomize.toolkit.fluxcd.io/prune": "disabled", "argocd.argoproj.io/sync-options": "Prune=false"}
    manifests = list(yaml.safe_load_all(done.stdout))
    assert {each["kind"] for each in manifests} == {"Pipeline", "PipelineVersion"}
    for each in manifests:
        assert each["metadata"]["annotations"].items() >= kept.items()
        assert each["metadata"]["namespace"] == "kubeflow"


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("nightly", "team_pipelines.nightly:nightly and other_pipelines.nightly:nightly both compile to nightly.yaml"),
        ("weekly", "the pipelines of nightly.yaml and weekly.yaml are both named 'nightly': rename one"),
    ],
)
def test_two_pipelines_of_one_name_are_refused(repository: Path, function: str, says: str) -> None:
    other = Path(shutil.copytree(repository / "team_pipelines", repository / "other_pipelines")) / "nightly.py"
    other.write_text(other.read_text().replace("def nightly(", f"def {function}("))
    table = repository / "pyproject.toml"
    paths = f'["team_pipelines.nightly:nightly", "other_pipelines.nightly:{function}"]'
    table.write_text(table.read_text().replace('["team_pipelines.nightly:nightly"]', paths))
    finished = kubetrain("compile", cwd=repository)
    assert (finished.exit_code, says in finished.output) == (2, True), finished.output
    assert not (repository / "compiled").exists()


def test_a_pipeline_that_kubernetes_would_refuse_for_its_size_is_not_written(repository: Path) -> None:
    source = repository / "team_pipelines" / "nightly.py"
    source.write_text(source.read_text().replace("The team's text model", "x" * (128 << 10)))
    finished = kubetrain("compile", cwd=repository)
    assert finished.exit_code == 1
    assert "more than 131072: split the pipeline" in finished.output
    assert not (repository / "compiled").exists()


def test_its_steps_and_pods_get_its_pull_secrets(repository: Path) -> None:
    assert kubetrain("compile", cwd=repository).exit_code == 0
    spec, platform = yaml.safe_load_all((repository / "compiled" / "nightly.yaml").read_text())
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors.keys() == spec["deploymentSpec"]["executors"].keys(), "the team's own step has settings too"
    for settings in executors.values():
        assert [each["secretName"] for each in settings["imagePullSecret"]] == ["team-registry"]
    sync = spec["root"]["dag"]["tasks"]["sync-dataset"]["inputs"]["parameters"]
    assert sync["pods_more"]["runtimeValue"]["constant"]["pod"] == {
        "spec": {"imagePullSecrets": [{"name": "team-registry"}]}
    }


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("nightly:nightly", "nightly:nigthly", "has no function 'nigthly': did you mean 'nightly'?"),
        ("team_pipelines.nightly:", "team_pipelines.daily:", "cannot import 'team_pipelines.daily'"),
        *(
            ('"team_pipelines.nightly:nightly"', each, 'pipelines must be a list like ["package.module:function"]')
            for each in ('"nightly"', '":"', '"team_pipelines.nightly:"')
        ),
        ("pytorch =", "torch =", "unknown name 'torch' in [tool.kubetrain.images]: did you mean 'pytorch'?"),
        ("[tool.kubetrain]", "[tool.kubetrain", "is not valid TOML"),
        ('["team-registry"]', "'ours'", "image_pull_secrets must be a list of strings, not 'ours'"),
    ],
)
def test_errors_in_its_table_are_named(repository: Path, before: str, after: str, says: str) -> None:
    table = repository / "pyproject.toml"
    table.write_text(table.read_text().replace(before, after))
    finished = kubetrain("compile", cwd=repository)
    assert (finished.exit_code, says in finished.output) == (2, True), finished.output


PIPELINE = """
from kfp import dsl
from kubetrain_pipelines.definitions.training_stages import sync_train_evaluate_promote

@dsl.pipeline(name="nightly")
def nightly():
    for _ in range({trainings}):
        sync_train_evaluate_promote(framework="pytorch", pipeline="nightly", data_uri="s3://b/d", model_uri="s3://b/m")
"""


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def nightly(): ...", "see that it is a function with @dsl.pipeline"),
        ("def nightly(:", "cannot import 'team_pipelines.nightly:nightly': invalid syntax"),
        (PIPELINE.format(trainings=2), "sync_train_evaluate_promote() can be called once in a pipeline"),
        (PIPELINE.format(trainings=0), "team_pipelines.nightly:nightly is not a pipeline: Task is missing"),
    ],
    ids=["a plain function", "a syntax error", "two trainings", "no tasks"],
)
def test_what_is_not_a_pipeline_is_refused_with_a_sentence(repository: Path, source: str, says: str) -> None:
    (repository / "team_pipelines" / "nightly.py").write_text(source)
    finished = kubetrain("compile", cwd=repository)
    assert (finished.exit_code, finished.output.count("\n"), says in finished.output) == (2, 1, True), finished.output
    assert finished.output.startswith("error: ")
