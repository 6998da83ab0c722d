"""`kubetrain settings`, `new` and `completion`: the settings of a run explained, begun in a file, and completed."""

import json
import re
from pathlib import Path

import pytest

from kubetrain_components.run.names import GROUPS, SETTINGS
from kubetrain_pipelines.cli.settings import show_settings, write_new
from kubetrain_pipelines.definitions.pipeline_parameters import parameters_of
from kubetrain_pipelines.requests.planned_run import planned_run
from kubetrain_pipelines.requests.request_file import read_source
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from support.cli import kubetrain

PLACES = {"data": {"uri": "s3://<BUCKET>/<DATASET>"}, "model": {"uri": "s3://<BUCKET>/<MODELS>"}}


@pytest.mark.parametrize("wanted", ["", *GROUPS])
def test_settings_are_listed_with_their_defaults(wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_settings(wanted, as_json=False)
    listed = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    shown = [each for each in SETTINGS.values() if not each.field.metadata["is_internal"]]
    assert listed.keys() == {each.name for each in shown if wanted in ("", each.group)}
    if wanted in ("", "model"):
        assert listed["model.uri"][:2] == ["required", "URI"]
    if wanted in ("", "data"):
        assert listed["data.format"][0] == "image_folder"
    show_settings(wanted, as_json=True)
    facts = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert facts.keys() == listed.keys()
    assert all(each["default"] == SETTINGS[name].default or each["is_required"] for name, each in facts.items())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("train.optimizer", ("default   sgd", "choices   sgd, adamw", "form      train_optimizer")),
        ("train.optimizer_args", ("form      train_more", "options with train.optimizer=sgd:", "  momentum (0.9): ")),
        ("train.log_every", ("resume    a run that resumes may change it",)),
        ("train.sharding", ("used by   train-pytorch, also on one machine",)),
        ("storage.class", ("used by   train-pytorch, train-tensorflow, clusters only",)),
    ],
)
def test_a_setting_is_explained(name: str, says: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    show_settings(name, as_json=False)
    shown = capsys.readouterr().out
    assert shown.startswith(f"{name}\n")
    assert all(f"\n{line}" in shown for line in says), shown


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_new_file_sets_only_where_the_data_and_models_are(framework: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    write_new(file, f"train-{framework}")
    asked = read_source(str(file))
    assert (asked.pipeline, asked.request) == (f"train-{framework}", PLACES)
    with pytest.raises(InvalidSetting, match="is a placeholder: fill in the name of your bucket"):
        planned_run(asked, "r")
    # The comments hold the defaults, which may be edited in place.
    keys = "|".join(each.key for each in SETTINGS.values())
    file.write_text(re.sub(rf"(?m)^  # (?=({keys}): )", "  ", file.read_text()))
    edited = read_source(str(file)).request
    assert ("min_workers" in edited["pods"]) is (framework == "pytorch")
    names = {f"{group}.{key}": value for group, named in edited.items() for key, value in named.items()}
    assert {name for name, value in names.items() if value != SETTINGS[name].default} == {"data.uri", "model.uri"}
    fields = {item.name for item in parameters_of(f"train-{framework}")}
    assert {name.replace(".", "_") for name in names} == {each for each in fields if not each.endswith("_more")}


@pytest.mark.parametrize(
    ("name", "pipeline", "says"),
    [
        ("mine.yaml", "train-pytorch", r"mine\.yaml exists"),
        ("new.yaml", "sync-only", "use one of train-pytorch"),
        ("new.yaml", "train", "use one of train-pytorch"),
        ("new", "train-pytorch", r"does not end in \.yaml: name a file such as new\.yaml"),
        ("missing/new.yaml", "train-pytorch", r"new\.yaml cannot be written \(No such file"),
    ],
)
def test_nothing_is_overwritten_or_begun_in_vain(name: str, pipeline: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    with pytest.raises(KubetrainError, match=says):
        write_new(tmp_path / name, pipeline)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("mine.yaml", "mine")]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("run sync", ["sync-only"]),
        ("run --set train.optimizer", ["train.optimizer", "train.optimizer_args"]),
        ("run --set train.optimizer=", ["sgd", "adamw"]),
        ("run --set train.optimizer = a", ["adamw"]),  # as bash splits it
        ("run --set train.optimizer =", ["sgd", "adamw"]),
        ("settings storage.st", [f"storage.{name}" for name in ("staging_claim", "staging_size", "static_claim")]),
    ],
)
def test_the_shell_completes_names_and_choices(words: str, offered: list[str]) -> None:
    asked = {"COMP_WORDS": f"kubetrain {words}".replace(" ", "\n"), "COMP_CWORD": str(len(words.split()))}
    completed = kubetrain(_KUBETRAIN_COMPLETE="bash_complete", **asked).output
    assert [line.removeprefix("plain,") for line in completed.split() if line.startswith("plain,")] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    assert f"_KUBETRAIN_COMPLETE={shell}_complete" in kubetrain("completion", shell).output
