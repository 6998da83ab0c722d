"""Generates components/kubetrain_components/README.md, with the inputs and outputs of each step, from their docstrings.

python -m kubetrain_pipelines.definitions.components_page >components/kubetrain_components/README.md
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from kubetrain_components.run.stages import STAGES, RunStage
from kubetrain_pipelines.definitions.pipeline_parameters import TRAINING, parameters_of

COMPONENTS: Mapping[str, Any] = {
    stage.name: getattr(import_module(f"kubetrain_components.{stage.name}.component"), stage.name) for stage in STAGES
}
HEAD = """\
# Steps

A step is a component of Kubeflow Pipelines: a folder with a `component.py`. That file reads the inputs, chooses the
adapters of the site (this machine or a cluster), and calls one plain function in a file beside it. Steps that train or
evaluate run a job and follow it. The other folders hold what the steps share; [the map](../../CONTRIBUTING.md#map)
lists them.

Each step can be killed and started again. [How it works](../../docs/how_it_works.md#a-run) shows a run, and
[your own pipeline](../../docs/kubeflow_pipelines.md#your-own-pipelines) can add steps. The pipeline `sync-only` runs
the first step alone, and `kubetrain train` runs the job of the second one alone.
"""
SETTINGS_LINK = "[fields of the form](../../docs/settings.md#fields-of-the-forms)"


def page() -> str:
    return "\n".join([HEAD, *(line for stage in STAGES for line in _step(stage))])


def _step(stage: RunStage) -> Iterator[str]:
    component = COMPONENTS[stage.name]
    summary, arguments, result = _sections(component.python_func.__doc__)
    inputs, outputs = component.component_spec.inputs or {}, component.component_spec.outputs or {}
    artifacts = [name for name in arguments if name in outputs and name not in inputs]
    fields = {parameter.name for pipeline in TRAINING for parameter in parameters_of(pipeline)}
    of_pipeline = [name for name in inputs if name in fields]
    yield from (f"## [`{stage.name}`]({stage.name}/component.py): {stage.title.lower()}", "", summary, "")
    yield from (f"Takes these {SETTINGS_LINK}: {_code(of_pipeline)}.", "") if of_pipeline else ()
    yield from ("| kind | name | type | meaning |", "| --- | --- | --- | --- |")
    for name in arguments:
        if name not in artifacts and name not in of_pipeline:
            yield _row("input", [name], inputs[name].type if name in inputs else "TaskConfig", arguments[name])
    for name in artifacts:
        yield _row("output", [name], outputs[name].type, arguments[name])
    if returned := [name for name in outputs if name not in artifacts]:
        yield _row("output", returned, ", ".join(dict.fromkeys(outputs[name].type for name in returned)), result)
    yield ""


def _sections(docstring: str) -> tuple[str, dict[str, str], str]:
    """Return the summary, the meaning of each argument, and what is returned."""
    summary, _, rest = inspect.cleandoc(docstring).partition("\n\nArgs:\n")
    arguments, _, result = rest.partition("\n\nReturns:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", arguments, re.M)
    return _joined(summary), {name: _joined(meaning) for name, meaning in found}, _joined(result)


def _joined(text: str) -> str:
    return " ".join(text.split())


def _row(kind: str, names: Sequence[str], type_name: str, meaning: str) -> str:
    artifact = re.fullmatch(r"system\.(\w+)@.*", type_name)
    return f"| {kind} | {_code(names)} | {f'{artifact[1]} artifact' if artifact else type_name} | {meaning} |"


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")
