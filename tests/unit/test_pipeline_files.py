"""Pipelines as runs find them: compiled files, and functions that get each field of their form by name."""

from pathlib import Path
from typing import Any

import pytest

from kubetrain_pipelines.definitions.compiled_file import CompiledFile
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, parameters_of, with_parameters
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.planned_run import fill_form, find_definition
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_trainer.errors import InvalidSetting
from support.kfp_runs import write_pipeline

COMPILED = Path(__file__).parents[2] / "compiled"


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

    assert pipeline("s3://b/p", data_secret="mine") == "{'data_uri': 's3://b/p', 'data_secret': 'mine'}"
    with pytest.raises(TypeError, match="pods_workers"):
        pipeline("s3://b/p", pods_workers=2)


def test_a_compiled_file_may_stand_for_a_file_that_describes_a_run(tmp_path: Path) -> None:
    own = write_pipeline(tmp_path / "greetings.yaml")
    for path in (own, COMPILED / "train_pytorch.yaml"):  # the second has several documents
        assert AskedRun(source=str(path), pairs=("name=Ada",)).read() == RequestFile(
            pipeline=str(path), own={"name": "Ada"}
        )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("pods: {gpus: 2}\n---\npods: {gpus: 4}\n", "has 2 YAML documents: write one"),
        ("request: 5", "line 1: there is no group 'request'"),
        ("", "describes no run: write `pipeline: train-pytorch`"),
    ],
)
def test_a_file_that_is_neither_is_refused(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "flowers.yaml").write_text(content)
    with pytest.raises(InvalidSetting, match=says):
        AskedRun(source=str(tmp_path / "flowers.yaml")).read()


def test_a_file_without_a_suffix_is_not_taken_for_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "flowers").write_text("pods: {gpus: 2}")
    with pytest.raises(InvalidSetting, match=r"flowers is a file, but its name does not end in \.yaml"):
        find_definition(str(tmp_path / "flowers"))


def test_the_fields_for_other_settings_are_set_by_the_names_of_these() -> None:
    with pytest.raises(InvalidSetting, match="there is no setting 'pods_more': write GROUP"):
        fill_form(parameters_of("sync-only"), AskedRun(pairs=("data.uri=s3://b/d", "pods_more={}")).read())
