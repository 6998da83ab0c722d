"""Fill in the form of a pipeline, and admit and plan the run as its first step would, before anything is sent."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kubetrain_components.run.admission import admit_run
from kubetrain_components.run.names import FORM_FIELDS, GROUPS, suggestion
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.request import MORE, Request, form_of, merged, request_of_form
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.definitions.compiled_file import CompiledFile
from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES, DeclaredPipeline, Parameter
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings.base import coerced
from kubetrain_trainer.settings.config import TrainConfig

OF_STEP = ("framework", "pipeline", "components_image", "trainer_image")


class Definition(Protocol):
    """A pipeline of kubetrain's, or a compiled one."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> list[Parameter]: ...

    def first_step(self, form: Mapping[str, Any]) -> dict[str, Any]: ...


def find_definition(pipeline: str) -> Definition:
    """
    Raises:
        InvalidSetting: if the pipeline does not exist.
    """
    return DeclaredPipeline(pipeline) if pipeline in PIPELINES else CompiledFile.find(pipeline)


def planned_run(asked: RequestFile, run_id: str, placeholders: Request | None = None) -> RunParameters:
    """Return the parameters of a run that trains, as its first step would admit them.

    Args:
        placeholders: Values of what is not set.

    Raises:
        InvalidSetting: if a setting cannot be used, or the pipeline has no step that gets all settings.
    """
    definition = find_definition(asked.pipeline)
    filled = RequestFile(pipeline=asked.pipeline, request=merged(placeholders or {}, asked.request), own=asked.own)
    admitted = _admitted(definition, run_id, fill_form(definition.parameters, filled))
    if not admitted or not admitted.framework:
        raise InvalidSetting(f"{definition.name} trains nothing: name a pipeline that does, such as train-pytorch")
    return admitted


def check_before_sending(definition: Definition, form: Mapping[str, Any]) -> TrainConfig:
    """Refuse what the run's first step would refuse, if it is kubetrain's. Return the settings of its training.

    Raises:
        InvalidSetting: if a setting cannot be used.
    """
    if admitted := _admitted(definition, "RUN-ID", form):
        planned_manifests(admitted)
    return admitted.train_config if admitted else TrainConfig()


def _admitted(definition: Definition, run_id: str, form: Mapping[str, Any]) -> RunParameters | None:
    inputs = definition.first_step(form)
    if not inputs:
        return None
    of_step = {name: str(inputs.get(name, "")) for name in OF_STEP}
    return admit_run(request_of_form(inputs), run_id=run_id, **of_step)


def fill_form(declared: Sequence[Parameter], asked: RequestFile) -> dict[str, Any]:
    """Return the parameters of a pipeline that a request sets.

    Raises:
        InvalidSetting: if the pipeline lacks a parameter, or needs one that is not set.
    """
    known = {item.name: item for item in declared}
    form = form_of(asked.request, {name: None if item.is_required else item.default for name, item in known.items()})
    own = known.keys() - FORM_FIELDS - {f"{group}_{MORE}" for group in GROUPS}
    for name, value in asked.own.items():
        if name not in own:
            near = did_you_mean(name, own) if own else suggestion(name)
            raise InvalidSetting(f"there is no setting '{name}': {near}")
        form[name] = coerced(name, known[name].type, value)
    for name, parameter in known.items():
        if parameter.is_required and name not in form:
            shown = FORM_FIELDS[name].name if name in FORM_FIELDS else name
            raise InvalidSetting(f"{shown} is missing ({parameter.description.rstrip('.')}): set {shown}=VALUE")
    return form
