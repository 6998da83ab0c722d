"""A request for a run: read from files, pairs and Python, filled into a form, and read back from it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.run.names import SETTINGS, RunSetting
from kubetrain_components.run.request import form_of, parameters_of, request_of, request_of_form
from kubetrain_pipelines.definitions.compiled_file import CompiledFile
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, REQUIRED, DeclaredPipeline, Parameter
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.one_machine import for_one_machine
from kubetrain_pipelines.requests.planned_run import check_before_sending, fill_form, planned_run
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_pipelines.requests.secret_warnings import secret_warnings
from kubetrain_pipelines.requests.yaml_text import to_yaml
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import kind_of
from kubetrain_trainer.settings.config import TrainConfig

COMPILED = Path(__file__).parents[2] / "compiled"
URIS = {"data": {"uri": "s3://b/data"}, "model": {"uri": "s3://b/models"}}
FLOWERS = """\
pipeline: train-tensorflow
data: {uri: s3://b/data}
model:
  uri: s3://b/models
  gate: accuracy>=0.9
pods:
  cpu: 4
  env: {ANSWER: no}
train:
  learning_rate: 1e-3
  seed: 010
  entry: train.py --name 'a b'
"""
READ = {
    "data": {"uri": "s3://b/data"},
    "model": {"uri": "s3://b/models", "gate": "accuracy>=0.9"},
    "pods": {"cpu": "4", "env": {"ANSWER": "no"}},
    "train": {"learning_rate": 0.001, "seed": 10, "entry": {"script": "train.py", "args": ["--name", "a b"]}},
}


def written(folder: Path, text: str, name: str = "flowers.yaml") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


def read(*pairs: str, source: str = "", **settings: Any) -> RequestFile:
    return AskedRun(source=source, pairs=pairs, settings=settings).read()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("flowers.yaml", FLOWERS),
        ("flowers.yml", "\ufeff" + FLOWERS.replace("\n", "\r\n")),
        ("flowers.json", json.dumps({"pipeline": "train-tensorflow", **READ})),
        ("again.yaml", to_yaml({"pipeline": "train-tensorflow", **READ})),
    ],
)
def test_a_file_describes_a_run(tmp_path: Path, name: str, text: str) -> None:
    assert read(source=written(tmp_path, text, name)) == RequestFile(pipeline="train-tensorflow", request=READ)


@pytest.mark.parametrize("pipeline", ["", "train-tensorflow", "nightly"])
def test_the_name_of_a_pipeline_may_stand_for_a_file(pipeline: str) -> None:
    assert read(source=pipeline) == RequestFile(pipeline=pipeline or "train-pytorch")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train:\n  seed: 1\n  epochs: 2\n  seed: 3\n", "line 4: 'seed' is given twice, first in line 2"),
        ('{"pods": {"env": {"A": "1",\n"A": "2"}}}', "line 2: 'A' is given twice"),
        ("train:\n  seed: 1\n  epoch: 2\n", "line 3: there is no setting 'train.epoch': did you mean 'train.epochs'?"),
        ("train: {}\npod:\n  gpus: 2\n", "line 2: there is no group 'pod': did you mean 'pods'?"),
        ("train:\n  seed: 1\n  epochs: two\n", "line 3: train.epochs must be a whole number, not 'two'"),
        ("pods:\n  workers: 0", "line 2: pods.workers must be at least 1, not 0"),
        ("train:\n  entry: train.py 'a", "line 2: train.entry is not a command line (No closing quotation)"),
        ("train:\n  entry: '{\"script\": 1'", "line 2: train.entry must be a JSON object"),
        ("train: 3", "line 1: train must have settings by name, not 3"),
        ("pipeline: [train-pytorch]", "line 1: pipeline must be a name, not ['train-pytorch']"),
        ("pods:\n  env: {A: [}\n", "line 2: "),
        ("train: &a\n  schedule_args: *a\n", "line 1: found unconstructable recursive node"),
        ("train: {skip_unchanged: !!bool maybe}", " is not valid YAML or JSON"),
        ("train: {seed: !!timestamp maybe}", " is not valid YAML or JSON"),
        ("train:\n  seed:\n", "line 2: train.seed has no value"),
        ("train.epochs: 2", "line 1: there is no group 'train.epochs': write epochs under train"),
        ("train_epochs: 2", "line 1: there is no group 'train_epochs': write epochs under train"),
        ("pipeline: mpi\nfoo: 2", "line 2: there is no group 'foo'"),
        ("- train", " describes no run: write `pipeline: train-pytorch`"),
        ("[" * 100_000, " is not valid YAML or JSON"),
    ],
)
def test_what_a_file_cannot_say_is_refused_with_the_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        read(source=written(tmp_path, text))
    assert f"flowers.yaml{'' if says.startswith(' ') else ', '}{says}" in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    for name in ("binary.yaml", "missing.json"):
        with pytest.raises(InvalidSetting, match=rf"{name} cannot be read .*: pass a file that describes a run"):
            read(source=str(tmp_path / name))


def test_pairs_replace_what_python_sets_and_that_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "pods: {workers: 2, gpus: 2}\ntrain: {epochs: 2, seed: 2, batch_size: 2}\n")
    train = {"epochs": 3, "seed": 3, "metric": None}
    asked = read("train.seed=4", "train.seed=5", "pods.gpus=0", source=file, train=train)
    assert asked.request == {"pods": {"workers": 2, "gpus": 0}, "train": {"epochs": 3, "seed": 5, "batch_size": 2}}


def test_text_is_taken_as_it_is_and_other_values_are_yaml_or_json(tmp_path: Path) -> None:
    file = written(tmp_path, '{"spec": {"hostname": "a"}}\n', "pod.yaml")
    gate = written(tmp_path, "\ufeffloss<1\n", "gate.txt")
    of_model = ("model.name=a: [b", f"model.gate=@{gate}", "model.args={width: 2}")
    asked = read(*of_model, "pods.cpu=4", f"pods.pod=@{file}", "train.learning_rate=1e-3", "train.skip_unchanged=true")
    assert asked.request == {
        "model": {"name": "a: [b", "gate": "loss<1", "args": {"width": 2}},
        "pods": {"cpu": "4", "pod": {"spec": {"hostname": "a"}}},
        "train": {"learning_rate": 0.001, "skip_unchanged": True},
    }


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("train.py --lr '1 2'", {"script": "train.py", "args": ["--lr", "1 2"]}),
        ("mpirun python train.py", {"command": ["mpirun", "python", "train.py"]}),
        ('{"script": "train.py"}', {"script": "train.py"}),
        ("", {}),
    ],
)
def test_an_entry_may_be_written_as_its_command_line(text: str, entry: dict[str, Any]) -> None:
    assert read(f"train.entry={text}").request == read(train={"entry": text}).request == {"train": {"entry": entry}}


def test_one_part_of_an_object_joins_the_others(tmp_path: Path) -> None:
    file = written(tmp_path, "pods: {nccl: {NCCL_DEBUG: WARN, NCCL_ALGO: Ring}}\n")
    asked = read("pods.nccl.NCCL_DEBUG=INFO", "train.optimizer_args.momentum=0.8", source=file)
    assert asked.request["pods"]["nccl"] == {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring"}
    assert asked.request["train"] == {"optimizer_args": {"momentum": 0.8}}


@pytest.mark.parametrize("text", ["1.10", "010", "hello # world", "a: b", "*", "null", ""])
@pytest.mark.parametrize("name", ["pods.env", "pods.nccl"])
def test_a_part_that_is_text_is_taken_as_it_is(name: str, text: str) -> None:
    group, _, key = name.partition(".")
    assert read(f"{name}.A={text}").request == {group: {key: {"A": text}}}


@pytest.mark.parametrize("text", ["*.pt", '["*.pt"]', "- '*.pt'\n"])
def test_one_text_stands_for_a_list_of_it(text: str) -> None:
    assert read(f"train.outputs={text}").request == {"train": {"outputs": ["*.pt"]}}


def test_objects_may_be_yaml() -> None:
    asked = read("train.entry={script: train.py}", "pods.env.A={secretKeyRef: {name: a, key: b}}")
    assert asked.request["train"] == {"entry": {"script": "train.py"}}
    assert asked.request["pods"] == {"env": {"A": {"secretKeyRef": {"name": "a", "key": "b"}}}}


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("train.epochs", "--set takes GROUP.NAME=VALUE, not 'train.epochs'"),
        ("train.epochs=2.5", "train.epochs must be a whole number, not 2.5"),
        ("train.epochs=true", "train.epochs must be a whole number, not True"),
        ("train.learning_rate=nan", "train.learning_rate must be a number, not nan"),
        ("train.skip_unchanged=1", "train.skip_unchanged must be true or false, not 1"),
        ("model.args=[]", "model.args must be a JSON object, not []"),
        ("pods.env={A: 1, A: 2}", "pods.env, line 1: 'A' is given twice"),
        ('train.entry={"script": "a", "script": "b"}', "train.entry, line 1: 'script' is given twice"),
        ("train.epochs.first=1", "train.epochs has no parts"),
        ("pods.pod=@missing.yaml", "pods.pod: missing.yaml cannot be read"),
        ("pods.env.A=@missing", "pods.env.A: missing cannot be read"),
        ("train.epochs=", "train.epochs has no value: give it one, or leave it out"),
        ("pods.evaluation.workers=2", "pods.evaluation cannot set pods.workers, which is not of one pod"),
        ("storage.transfer.memry=4Gi", "there is no setting 'pods.memry': did you mean 'pods.memory'?"),
        ("pods.evaluation.env.A=1", "there is no setting 'pods.env.A': pods.env is one"),
        ("epochs=2", "there is no setting 'epochs': did you mean 'train.epochs'?"),
        ("train.optimizer=sdg", "train.optimizer cannot be 'sdg': did you mean 'sgd'?"),
    ],
)
def test_a_pair_that_sets_nothing_is_refused(pair: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        read(pair)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "did you mean 'train.learning_rate'") for name in ("lr", "train.lr", "train.learning_rat")),
        *((name, "did you mean 'train.batch_size'") for name in ("bs", "train.bs", "batch_size", "pods.batch_size")),
        *((name, "did you mean 'pods.workers'") for name in ("nnodes", "pods.replicas", "pods.worker", "worker")),
        ("train_epochs", "write train.epochs, as outside of forms"),
        ("model.temperature", "`kubetrain settings model` lists those of this group"),
        ("temperature", "write GROUP.NAME; the groups are data, model, pods, storage, train"),
    ],
)
def test_a_name_that_no_setting_has_is_refused_with_one_that_is_near_if_any(name: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=f"there is no setting '{name}': {says}"):
        planned_run(read(f"{name}=1"), "r")


def test_the_record_of_a_run_runs_again(tmp_path: Path) -> None:
    train = {"epochs": 2, "entry": {"script": "train.py"}}
    made = {"pipeline": "train-tensorflow", "workspace": tmp_path, "config": TrainConfig(**train), "started": 0.0}
    record = RunRecord(**made, asked={"train": train}, settings={**URIS, "train": train}).to_json()
    asked = read(source=written(tmp_path, json.dumps(record), "run.json"))
    assert asked == RequestFile(pipeline="train-tensorflow", request={"train": train})


def test_a_record_has_no_secrets_of_other_pods_or_of_a_pipeline_of_ones_own(tmp_path: Path) -> None:
    other = {"cpu": "2", "env": {"HF_TOKEN": "hf_abcdefghijklmnop1234"}, "secret_env": {"TOKEN": "mine/token"}}
    asked = {"pods": {"evaluation": other}, "storage": {"transfer": other}}
    made = {"pipeline": "nightly", "workspace": tmp_path, "config": TrainConfig(), "started": 0.0}
    record = RunRecord(**made, asked=asked, settings={}, own={"api_token": "abc", "depth": 3}).to_json()["request"]
    shown = {**other, "env": {"HF_TOKEN": "…"}}
    own = {"api_token": "…", "depth": 3}
    assert record == {"pipeline": "nightly", "pods": {"evaluation": shown}, "storage": {"transfer": shown}, **own}
    file = written(tmp_path, json.dumps({"request": {"pipeline": "nightly", **own}}), "run.json")
    with pytest.raises(InvalidSetting, match=r"run\.json has no value of api_token"):
        read(source=file)


def test_a_secret_that_a_record_lacks_has_to_be_set_again(tmp_path: Path) -> None:
    file = written(tmp_path, json.dumps({"request": {"model": {"args": {"api_key": "…", "width": 2}}}}), "run.json")
    with pytest.raises(InvalidSetting, match=r"run\.json has no value of model\.args, .* secret: set it with --set"):
        read(source=file)
    written(tmp_path, "pods: {env: {A: wait…}}")
    assert read(source=str(tmp_path / "flowers.yaml")).request["pods"]["env"] == {"A": "wait…"}
    assert read("model.args.api_key=mine", source=file).request["model"]["args"] == {"api_key": "mine", "width": 2}


def other_value(setting: RunSetting) -> Any:
    """Return a value that is not the default."""
    if setting.name == "pods.pod":
        return pod_patch({"priorityClassName": "high"})
    if setting.field.metadata["choices"]:
        return next(choice for choice in setting.field.metadata["choices"] if choice != setting.default)
    examples = {str: "other", bool: not setting.default, int: 7, float: 0.25, list: [{"a": 1}]}
    return examples.get(kind_of(setting.field), {"a": 1})


@pytest.mark.parametrize("pipeline", PIPELINES[:2])
def test_a_form_stands_for_the_request_that_it_was_filled_in_from(pipeline: str) -> None:
    defaults = {item.name: item.default for item in DeclaredPipeline(pipeline).parameters}
    framework = pipeline.removeprefix("train-")
    request: dict[str, dict[str, Any]] = {}
    for setting in SETTINGS.values():
        if setting.field.metadata["only"] in ("", "cluster", framework):
            request.setdefault(setting.group, {})[setting.key] = other_value(setting)
    form = form_of(request, defaults)
    assert form.keys() == defaults.keys()
    assert form["train_entry"] == '{"a": 1}'
    assert request_of_form({**defaults, **form}) == request
    floats = json.loads(json.dumps({**defaults, **form}), parse_int=float)  # as Kubeflow Pipelines sends numbers
    assert request_of_form(floats) == request


def test_a_field_at_its_default_sets_nothing() -> None:
    defaults = {item.name: item.default for item in DeclaredPipeline("train-pytorch").parameters}
    assert request_of_form({**defaults, "data_uri": "", "model_uri": "", "train_epochs": 15.0}) == {}


def test_a_field_for_other_settings_takes_only_those() -> None:
    with pytest.raises(InvalidSetting, match=r"pods\.cpu is in pods_more, but has a field of its own: set it there"):
        request_of_form({"pods_cpu": "1", "pods_more": {"cpu": "2"}})
    with pytest.raises(InvalidSetting, match=r"there is no setting 'train\.epoch': did you mean"):
        parameters_of(request_of_form({"train_more": {"epoch": 1}}))


def test_parameters_stand_for_the_settings_that_differ_from_their_defaults() -> None:
    request = {**READ, "pods": {"workers": 3}, "storage": {"class": "fast"}, "train": {"seed": 10}}
    assert request_of(parameters_of(request, framework="tensorflow")) == request
    assert request_of(parameters_of({**URIS, "train": {"epochs": TrainConfig().epochs}})) == URIS


OWN = (
    Parameter("depth", int, REQUIRED, "How deep."),
    Parameter("options", dict, {"a": 1}, "More."),
    Parameter("pods_more", dict, {"network": "infiniband"}, "Pods of the team."),
    Parameter("pods_workers", int, 8, "Workers."),
)


def test_a_pipeline_of_ones_own_has_parameters_beside_settings(tmp_path: Path) -> None:
    file = written(tmp_path, "pipeline: nightly\ndepth: 3\noptions: {b: 2}\npods: {queue: q}\n")
    asked = read("options={}", source=file, depth=4)
    pods = {"network": "infiniband", "queue": "q"}
    assert fill_form(OWN, asked) == {"depth": 4, "options": {}, "pods_more": pods}


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        ((), r"depth is missing \(How deep\): set depth=VALUE"),
        (("depth=deep",), "depth must be a whole number, not 'deep'"),
        (("depht=3",), "there is no setting 'depht': did you mean 'depth'"),
        (("depth=3", "train.epochs=3"), "this pipeline has no setting train.epochs: leave it out"),
    ],
)
def test_what_an_own_pipeline_cannot_take_is_refused(pairs: tuple[str, ...], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        fill_form(OWN, read(*pairs, source="nightly"))


def test_only_a_first_step_of_kubetrain_knows_what_settings_mean() -> None:
    check_before_sending(SimpleNamespace(first_step=lambda form: {}), {"pods_workers": 0})
    with pytest.raises(InvalidSetting, match=r"pods\.workers must be at least 1, not 0"):
        check_before_sending(SimpleNamespace(first_step=dict), {"data_uri": "s3://b/d", "pods_workers": 0})


def test_a_setting_that_is_missing_is_named_with_its_meaning() -> None:
    with pytest.raises(InvalidSetting, match=r"model\.uri is missing \(.*s3://BUCKET/PREFIX.*\): set model.uri=VALUE"):
        planned_run(read(data=URIS["data"]), "r")
    with pytest.raises(InvalidSetting, match="sync-only trains nothing: name a pipeline that does"):
        planned_run(read(source="sync-only", data=URIS["data"]), "r")
    assert planned_run(read(), "r", placeholders=URIS).model_uri == "s3://b/models"


def send(pipeline: str, *pairs: str) -> None:
    file = CompiledFile.read(COMPILED / f"{pipeline.replace('-', '_')}.yaml")
    uris = {"data": URIS["data"]} if pipeline == "sync-only" else URIS
    check_before_sending(file, fill_form(file.parameters, read(*pairs, **uris)))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_the_first_step_admits_is_sent(pipeline: str) -> None:
    send(pipeline)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("model.name=torchvision:resnt50", "resnt50"),
        ("data.secret=", "data.secret is empty"),
        ("data.endpoint=nan", "data.endpoint 'nan' is not a URL: write https://HOST"),
        ("pods.cpu=" + "9" * 5000, "is not a Kubernetes quantity"),
        *((f"{name}=0", "_size is 0: set") for name in ("pods.shm_size", "storage.staging_size")),
        *((f"pods.{each}=1e308", f"pods.{each} must be at most 2147483647") for each in ("gpus", "user")),
        ("train.optimizer_args.momentum=3", r"train.optimizer_args.momentum must be at most .*, not 3 \(with"),
    ],
)
def test_what_the_first_step_refuses_is_not_sent(pair: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        send("train-pytorch", pair)


@pytest.mark.parametrize("value", ["💥", "a b", "../x", "{{workflow.name}}", "x" * 300])
@pytest.mark.parametrize("name", ["storage.staging_claim", "storage.class", "data.secret", "pods.image"])
def test_a_name_that_kubernetes_refuses_is_not_sent(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name.rpartition('.')[2]} '.*' is not a valid"):
        send("train-pytorch", f"{name}={value}")


@pytest.mark.parametrize(
    "image",
    ["a", "localhost:5000/a/b_c:v1.0_x", "ghcr.io/me/a@sha256:" + "0" * 64, "1.dkr.ecr.eu.amazonaws.com/a__b:1"],
)
def test_a_name_of_an_image_is_accepted(image: str) -> None:
    assert Placement(image=image).image == image


def test_one_machine_names_what_only_a_cluster_uses() -> None:
    request = {**URIS, "pods": {"workers": 2, "gpus": 1, "max_restarts": 0}, "storage": {"class": "fast"}}
    said: list[str] = []
    assert for_one_machine(request, said.append) == {**URIS, "pods": {"workers": 2, "max_restarts": 0}, "storage": {}}
    assert for_one_machine(URIS, said.append) == URIS
    assert said == ["only a cluster uses pods.gpus, storage.class: no effect on this machine"]


def test_settings_that_look_like_secrets_are_named_without_their_values() -> None:
    token = "hf_abcdefghijklmnop1234"
    pods = {"env": {"HF_TOKEN": token, "A": "b"}, "secret_env": {"TOKEN": "mine/token"}}
    train = {"entry": {"script": "train.py", "args": ["--api-key", token]}, "epochs": 3}
    warnings = secret_warnings({"data": {"secret": "kubetrain-s3"}, "pods": pods, "train": train})
    assert [warning.partition(" ")[0] for warning in warnings] == ["pods.env.HF_TOKEN", "train.entry.args"]
    assert token not in str(warnings)
