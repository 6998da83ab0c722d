"""--set and --params: one parser for the parameters that kubetrain declares and those of any compiled pipeline."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.run.admission import admit_run
from kubetrain_pipelines.definitions.pipeline_parameters import (
    PARAMETERS,
    PIPELINES,
    REQUIRED,
    Parameter,
    parameters_of,
    with_parameters,
)
from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile
from kubetrain_pipelines.local_run.requested_run import check_apply_here
from kubetrain_pipelines.local_run.storage import local_parameters
from kubetrain_pipelines.requests.parse_parameters import parse_parameters
from kubetrain_pipelines.requests.planned_run import check_before_sending, planned_run
from kubetrain_trainer.errors import InvalidSetting

COMPILED = Path(__file__).parents[2] / "compiled"
DECLARED = parameters_of("train-pytorch")
NEEDED = ("dataset_uri=s3://b/data", "model_uri=s3://b/models")


@pytest.fixture(params=["declared", "compiled"])
def parameters(request: pytest.FixtureRequest) -> Sequence[Parameter]:
    return DECLARED if request.param == "declared" else CompiledFile.read(COMPILED / "train_pytorch.yaml").parameters


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_compiled_pipeline_has_the_declared_parameters(pipeline: str) -> None:
    compiled = CompiledFile.read(COMPILED / f"{pipeline.replace('-', '_')}.yaml").parameters
    assert {(each.name, str(each.type), str(each.default).removesuffix(".0")) for each in compiled} == {
        (each.name, str(each.type), str(each.default).removesuffix(".0")) for each in parameters_of(pipeline)
    }
    assert {each.name: each.description for each in compiled} == {
        each.name: each.description for each in parameters_of(pipeline)
    }


def test_a_pipelines_function_gets_every_parameter_by_name() -> None:
    @with_parameters("sync-only")
    def pipeline(**parameters: Any) -> str:
        return f"{parameters}"

    assert pipeline("s3://b/p", s3_secret="mine") == "{'dataset_uri': 's3://b/p', 's3_secret': 'mine'}"
    with pytest.raises(TypeError, match="workers"):
        pipeline("s3://b/p", workers=2)


def test_values_have_the_declared_types_and_settings_join_their_objects(parameters: Sequence[Parameter]) -> None:
    pairs = ("workers=4", "min_accuracy=0.9", "epochs=3", "learning_rate=0.1", "image=mine", "output_size=1Gi")
    objects = ('placement={"grace_seconds": 9}', 'env={"A": "b"}', "staging_claim=a=b")
    assert parse_parameters(parameters, [*NEEDED, *pairs, *objects]) == {
        "dataset_uri": "s3://b/data",
        "model_uri": "s3://b/models",
        "staging_claim": "a=b",
        "workers": 4,
        "min_accuracy": 0.9,
        "train_config": {"epochs": 3, "learning_rate": 0.1},
        "placement": {"image": "mine", "grace_seconds": 9, "env": {"A": "b"}},
        "storage": {"output_size": "1Gi"},
    }


def test_an_empty_object_is_a_value_that_replaces_the_default(tmp_path: Path) -> None:
    declared = [
        Parameter("train_config", dict[str, Any], REQUIRED, "needed"),
        Parameter("placement", dict[str, Any], {"network": "infiniband"}, "pods of a team's own pipeline"),
    ]
    empty = {"train_config": {}, "placement": {}}
    file = tmp_path / "params.json"
    file.write_text(json.dumps(empty))
    assert parse_parameters(declared, ["train_config={}", "placement={}"]) == empty
    assert parse_parameters(declared, [], file) == empty
    assert parse_parameters(declared, ["epochs=3"], file) == {"train_config": {"epochs": 3}, "placement": {}}
    with pytest.raises(InvalidSetting, match="train_config is missing"):
        parse_parameters(declared, ["placement={}"])


def test_the_last_of_two_pairs_wins(parameters: Sequence[Parameter]) -> None:
    values = parse_parameters(parameters, [*NEEDED, "workers=2", "workers=5", "epochs=2", 'train_config={"epochs": 5}'])
    assert (values["workers"], values["train_config"]) == (5, {"epochs": 5})


def test_a_pair_overrides_the_file_wherever_the_file_sets_it(parameters: Sequence[Parameter], tmp_path: Path) -> None:
    file = tmp_path / "parameters.json"
    content = {"dataset_uri": "s3://b/other", "epochs": 9, "workers": 8, "placement": {"gpus": 1, "queue": "q"}}
    file.write_text(json.dumps({**content, "train_config": {"seed": 1}}))
    values = parse_parameters(parameters, [*NEEDED, "workers=2", "gpus=2", "scheduler=kueue", "seed=2"], file)
    assert values == {
        "dataset_uri": "s3://b/data",
        "model_uri": "s3://b/models",
        "workers": 2,
        "gpus": 2,
        "train_config": {"epochs": 9, "seed": 2},
        "placement": {"queue": "q", "scheduler": "kueue"},
    }


@pytest.mark.parametrize(
    ("pairs", "cpu"),
    [
        (['placement={"cpu": "4"}', "cpu=1"], "1"),
        (['placement={"cpu": "4"}', "cpu=2"], "2"),
        (["cpu=2", 'placement={"cpu": "4"}'], "4"),
        (["cpu=2", 'placement={"cpu": "1", "queue": ""}'], "1"),
    ],
)
def test_the_last_word_on_a_setting_is_what_render_shows_and_the_run_gets(
    parameters: Sequence[Parameter], pairs: list[str], cpu: str
) -> None:
    sent = parse_parameters(parameters, [*NEEDED, *pairs])
    defaults = {each.name: each.default for each in parameters}
    images = {"framework": "pytorch", "components_image": "c", "trainer_image": "t"}
    admitted = admit_run(**images, **{**defaults, **sent})
    assert admitted.placement.cpu == cpu
    assert planned_run("train-pytorch", "r", [*NEEDED, *pairs]).placement.cpu == cpu


def limited(**limits: str) -> str:
    return f"pod={json.dumps(pod_patch(main={'resources': {'limits': limits}}))}"


def test_a_limit_may_be_below_the_default_request(parameters: Sequence[Parameter]) -> None:
    pairs = [*NEEDED, "cpu=250m", "memory=1Gi", limited(cpu="500m", memory="2Gi")]
    sent = parse_parameters(parameters, pairs)
    assert sent["placement"] == {"pod": pod_patch({}, {"resources": {"limits": {"cpu": "500m", "memory": "2Gi"}}})}
    check_before_sending("train-pytorch", DECLARED, sent)
    assert planned_run("train-pytorch", "r", pairs).placement.limits["cpu"] == "500m"
    for pair in (limited(cpu="200m"), limited(memory="512Mi")):
        with pytest.raises(InvalidSetting, match=r"which the pod requests"):
            parse_parameters(parameters, [*pairs, pair])
    with pytest.raises(InvalidSetting, match="the limit of cpu '500m' is less than cpu '1'"):
        parse_parameters(parameters, [*NEEDED, limited(cpu="500m")])


def test_a_pair_overrides_the_object_of_a_file_even_with_the_default(tmp_path: Path) -> None:
    file = tmp_path / "nightly.json"
    file.write_text('{"placement": {"memory": "64Gi", "grace_seconds": 9}}')
    run = planned_run("train-pytorch", "r", [*NEEDED, "memory=4Gi"], file)
    assert (run.placement.memory, run.placement.grace_seconds) == ("4Gi", 9)


def test_a_parameter_overrides_the_default_of_an_object() -> None:
    cpu, gpus = Parameter("cpu", str, "1", "CPUs"), Parameter("gpus", str, "", "a team's own, of another type")
    placement = Parameter("placement", dict[str, Any], {"cpu": "4", "gpus": 2}, "pods")
    assert parse_parameters([cpu, gpus, placement], ["cpu=1", "gpus=x"]) == {
        "cpu": "1",
        "gpus": "x",
        "placement": {"gpus": 2},
    }


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("workers=0", "workers must be a number from 1"),
        ("min_workers=5", "min_workers must be a number from 0 to 2"),
        ("model=torchvision:resnt50", "resnt50"),
        ("dataset_access=public", "dataset_access is 'public'"),
        ("dataset_uri=gs://x", "dataset_uri 'gs://x'"),
        ("min_accuracy=97", "min_accuracy must be a number from 0 to 1"),
        ("staging_size=lots", "'lots' is not a Kubernetes quantity"),
        ("s3_secret=", "s3_secret is empty"),
        ("s3_endpoint=nan", "s3_endpoint 'nan' is not a URL: write https://HOST"),
        ("image=a b", "image 'a b' is not a valid name of an image"),
        ("cpu=" + "9" * 5000, "is not a Kubernetes quantity"),
        *((f"{each}=0", f"{each} is 0: set") for each in ("staging_size", "memory", "shm_size", "cpu")),
        *((f"{each}=1e308", f"{each} must be at most 2147483647") for each in ("gpus", "user")),
        ('env={"MASTER_ADDR": "x"}', "MASTER_ADDR"),
    ],
)
def test_what_the_first_step_refuses_is_not_sent(pair: str, says: str) -> None:
    file = CompiledFile.read(COMPILED / "train_pytorch.yaml")
    with pytest.raises(InvalidSetting, match=says):
        check_before_sending(file.name, file.parameters, parse_parameters(file.parameters, [*NEEDED, pair]))


NAMED = ("staging_claim", "output_claim", "storage_class", "s3_secret")


@pytest.mark.parametrize("value", ["💥", "a b", "../x", "{{workflow.name}}", "x" * 300])
@pytest.mark.parametrize("name", [*NAMED, "image"])
def test_a_name_that_kubernetes_refuses_is_not_sent(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} '.*' is not a valid"):
        check_before_sending("train-pytorch", DECLARED, parse_parameters(DECLARED, [*NEEDED, f"{name}={value}"]))


@pytest.mark.parametrize(
    "image",
    ["a", "localhost:5000/a/b_c:v1.0_x", "ghcr.io/me/a@sha256:" + "0" * 64, "1.dkr.ecr.eu.amazonaws.com/a__b:1"],
)
def test_a_name_of_an_image_is_accepted(image: str) -> None:
    assert Placement(image=image).image == image


def test_what_the_first_step_admits_is_sent() -> None:
    for name, needed in (("train_tensorflow", NEEDED), ("sync_only", NEEDED[:1])):
        file = CompiledFile.read(COMPILED / f"{name}.yaml")
        check_before_sending(file.name, file.parameters, parse_parameters(file.parameters, needed))


def test_a_teams_own_pipeline_may_mean_something_else_by_a_name() -> None:
    check_before_sending("train-pytorch", [Parameter("workers", int, 1, "")], {"workers": 0})
    check_before_sending("nightly", parameters_of("train-pytorch"), {"workers": 0})


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("workrs=2", "unknown setting 'workrs': did you mean 'workers'?"),
        ("epoch=2", "unknown setting 'epoch': did you mean 'epochs'?"),
        ("workers=two", "workers must be a whole number, not 'two'"),
        ("workers=2.5", "workers must be a whole number, not 2.5"),
        ("workers=true", "workers must be a whole number, not True"),
        ("min_accuracy=good", "min_accuracy must be a number, not 'good'"),
        ("min_accuracy=NaN", "min_accuracy must be a number, not nan"),
        ("train_config=[]", "train_config must be a JSON object, not []"),
        ("skip_unchanged=1", "skip_unchanged must be true or false, not 1"),
        ("epochs=0", "epochs must be at least 1, not 0"),
        ("workers", "--set takes name=value, not 'workers'"),
    ],
)
def test_unusable_values_are_refused(parameters: Sequence[Parameter], pair: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_parameters(parameters, [*NEEDED, pair])
    assert says in str(refused.value)


def test_a_file_of_powershell_is_read(tmp_path: Path) -> None:
    file = tmp_path / "parameters.json"
    file.write_text('{"workers": 4}', encoding="utf-8-sig")
    assert parse_parameters(DECLARED, NEEDED, file)["workers"] == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"workers": "2"}', "workers must be a whole number, not '2'"),
        ('{"staging_claim": 5}', "staging_claim must be"),
        ('{"workrs": 2}', "did you mean 'workers'"),
        ("[]", "is not a JSON object"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"workers": 2, "workers": 4}', "'workers' is given twice"),
        ('{"placement": {"gpus": 2, "gpus": 4}}', "'gpus' is given twice"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "parameters.json"
    file.write_text(content)
    with pytest.raises(InvalidSetting) as refused:
        parse_parameters(DECLARED, NEEDED, file)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ('train_config={"seed": 1, "seed": 2}', "train_config: 'seed' is given twice"),
        ('placement={"env": {"A": "1", "A": "2"}}', "placement: 'A' is given twice"),
        ('env={"A": "1", "A": "2"}', "env: 'A' is given twice"),
    ],
)
def test_a_name_that_an_object_has_twice_is_refused(parameters: Sequence[Parameter], pair: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        parse_parameters(parameters, [*NEEDED, pair])


def test_a_missing_parameter_is_named_with_its_meaning(parameters: Sequence[Parameter]) -> None:
    with pytest.raises(InvalidSetting, match=r"model_uri is missing \(.*s3://BUCKET/PREFIX\).*: set model_uri="):
        parse_parameters(parameters, NEEDED[:1])


def test_an_object_of_another_pipeline_that_is_not_one_of_ours_holds_no_settings() -> None:
    own = [Parameter("placement", str, "", "Where.")]
    assert parse_parameters(own, ["placement=left"]) == {"placement": "left"}
    with pytest.raises(InvalidSetting, match="unknown setting 'gpus'"):
        parse_parameters(own, ["gpus=1"])


def test_a_local_run_needs_no_parameter_and_takes_none_of_a_cluster() -> None:
    assert parse_parameters(local_parameters("train-tensorflow")) == {}
    check_apply_here("train-tensorflow", ["seed", "train_config", "dataset_uri", "unknown"])
    for name in ("gpus=1", "staging_size=1Gi", "s3_secret=x", "processes_per_worker=2"):
        with pytest.raises(InvalidSetting, match="unknown setting"):
            parse_parameters(local_parameters("train-tensorflow"), [name])
        if not name.startswith("processes"):
            with pytest.raises(InvalidSetting, match=r"^[a-z0-9_]+ applies only to a run on a cluster"):
                check_apply_here("train-tensorflow", [name.partition("=")[0]])
    with pytest.raises(InvalidSetting, match="unknown pipeline 'sync-only'"):
        local_parameters("sync-only")


def test_a_parameter_for_a_setting_has_its_default_and_meaning() -> None:
    gpus = next(each for each in PARAMETERS if each.name == "gpus")
    assert (gpus.type, gpus.default) == (int, Placement().gpus)
