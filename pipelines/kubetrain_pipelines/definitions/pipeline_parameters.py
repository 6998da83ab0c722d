"""The parameters of kubetrain's pipelines, which are the fields of their forms: one for each setting that many runs
change, and one of each group for its other settings."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.names import GROUPS, SETTINGS, RunSetting
from kubetrain_components.run.request import MORE
from kubetrain_components.run.run_settings import RunSettings
from kubetrain_pipelines.definitions.images import COMPONENTS, TRAINERS
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.frameworks import PACKAGES
from kubetrain_trainer.settings.base import kind_of

FRAMEWORKS = {f"train-{framework}": framework for framework in PACKAGES}
"""The framework of each pipeline that trains."""
TRAINING = tuple(FRAMEWORKS)
SYNC_ONLY = "sync-only"
PIPELINES = (*TRAINING, SYNC_ONLY)
REQUIRED = inspect.Parameter.empty

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True)
class Parameter:
    name: str
    type: Any
    """str, int, float, bool, dict or list."""
    default: Any
    description: str
    choices: tuple[Any, ...] = ()

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


def framework_of(pipeline: str) -> str:
    """Return the framework of a pipeline that trains.

    Raises:
        InvalidSetting: if the pipeline does not exist or does not train.
    """
    if pipeline not in FRAMEWORKS:
        raise InvalidSetting(f"unknown pipeline '{pipeline}': {did_you_mean(pipeline, FRAMEWORKS)}")
    return FRAMEWORKS[pipeline]


def function_path(pipeline: str) -> str:
    """Return the import path of the function that defines a pipeline."""
    name = pipeline.replace("-", "_")
    return f"kubetrain_pipelines.definitions.{name}:{name}"


def parameters_of(pipeline: str) -> list[Parameter]:
    """Return the fields of a form. Required ones come first, as in every Python signature."""
    return sorted(_parameters(pipeline), key=lambda parameter: not parameter.is_required)


def _parameters(pipeline: str) -> Iterator[Parameter]:
    settings = [setting for setting in SETTINGS.values() if has_setting(pipeline, setting)]
    for group, meaning in GROUPS.items():
        in_group = [setting for setting in settings if setting.group == group]
        in_form = [setting for setting in in_group if _is_in_form(pipeline, setting)]
        yield from map(_field_of, in_form)
        if len(in_form) < len(in_group):
            example = '{"name": value}'
            yield Parameter(f"{group}_{MORE}", dict, {}, f"Other settings of {meaning}: {example}.")


def has_setting(pipeline: str, setting: RunSetting) -> bool:
    """Return True if runs of this pipeline use the setting."""
    if pipeline == SYNC_ONLY:
        of_dataset = setting.kind is RunSettings and setting.group == "data"
        return of_dataset or setting.kind is Placement or (setting.kind is Storage and "output" not in setting.key)
    return setting.field.metadata["only"] in ("", "cluster", FRAMEWORKS[pipeline])


def _is_in_form(pipeline: str, setting: RunSetting) -> bool:
    """The pod of a transfer has resources of its own, so only its placement may be of interest."""
    return setting.field.metadata["in_form"] and not (pipeline == SYNC_ONLY and setting.kind is Placement)


def _field_of(setting: RunSetting) -> Parameter:
    declared = setting.field.metadata
    if setting.name == "train.entry":
        return Parameter(setting.form_field, str, "", "Script or command of your own: train.py --lr 1e-3.")
    default = REQUIRED if declared["is_required"] else setting.default
    choices = (True, False) if kind_of(setting.field) is bool else declared["choices"]
    return Parameter(setting.form_field, kind_of(setting.field), default, setting.sentence, choices)


@dataclass(frozen=True)
class DeclaredPipeline:
    """One of kubetrain's pipelines, without the time that it takes to compile it."""

    name: str

    @property
    def parameters(self) -> list[Parameter]:
        return parameters_of(self.name)

    def first_step(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Return what sync_dataset gets if these parameters are set."""
        framework = FRAMEWORKS.get(self.name, "")
        defaults = {item.name: item.default for item in self.parameters}
        pods = {"components_image": COMPONENTS, "trainer_image": TRAINERS.get(framework, "")}
        return {**defaults, **form, "pipeline": self.name, "framework": framework, **pods}


def described(purpose: str) -> str:
    """Return what the page of a pipeline shows: its purpose, an example, and where its fields are explained."""
    return (
        f"{purpose}\n\nFor example: data_uri s3://my-bucket/flowers, model_uri s3://my-bucket/models, model_name "
        "torchvision:resnet50, train_epochs 30, pods_workers 4, pods_gpus 1.\n\n`kubetrain settings` and "
        "docs/settings.md explain every field: train_epochs is train.epochs there. Other settings of a group are a "
        'JSON object in its field that ends in more, such as train_more: {"clip_norm": 0.5}.'
    )


def signature_of(parameters: Iterable[Parameter]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=parameter.default,
                annotation=parameter.type,
            )
            for parameter in parameters
        ]
    )


def with_parameters(pipeline: str) -> Callable[[Function], Function]:
    """Give a function that takes **parameters the signature and docstring that KFP compiles a pipeline from."""
    parameters = parameters_of(pipeline)
    signature = signature_of(parameters)

    def decorated(function: Function) -> Function:
        @wraps(function)
        def pipeline_function(*values: Any, **named: Any) -> object:
            return function(**signature.bind(*values, **named).arguments)

        declared: Any = pipeline_function
        declared.__signature__ = signature.replace(return_annotation=inspect.signature(function).return_annotation)
        arguments = "\n".join(f"    {parameter.name}: {parameter.description}" for parameter in parameters)
        declared.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{arguments}\n"
        return pipeline_function  # type: ignore[return-value]

    return decorated
