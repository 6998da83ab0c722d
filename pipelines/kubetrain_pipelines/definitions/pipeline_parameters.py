"""The parameters of kubetrain's pipelines: name, type, default and description of each, declared only here.

The signatures of the pipelines, `--set`, the forms of the Kubeflow Pipelines UI and docs/settings.md derive from them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, Field, dataclass, fields, replace
from functools import wraps
from typing import Any, TypeVar, get_origin

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.object_store.credentials import DEFAULT_SECRET
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.frameworks import PACKAGES
from kubetrain_trainer.settings.base import Settings
from kubetrain_trainer.settings.config import TrainConfig

FRAMEWORKS = {f"train-{framework}": framework for framework in PACKAGES}
"""The framework of each pipeline that trains."""
TRAINING = tuple(FRAMEWORKS)
PIPELINES = (*TRAINING, "sync-only")
REQUIRED = inspect.Parameter.empty

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True)
class Parameter:
    name: str
    type: Any
    """str, int, float, bool, dict[str, Any] or list[Any]."""
    default: Any
    description: str
    _: KW_ONLY
    pipelines: tuple[str, ...] = TRAINING
    is_local: bool = False
    """True if `kubetrain run`, which has no PVCs, pods or secrets, accepts it too."""

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


def describe(setting: "Field[Any]") -> str:
    """Return the meaning of a setting with its choices."""
    choices = [choice for choice in setting.metadata["choices"] if choice]
    return f"{setting.metadata['meaning']} ({', '.join(choices)})" if choices else setting.metadata["meaning"]


def _from_setting(kind: type[Settings], name: str, pipelines: tuple[str, ...] = TRAINING) -> Parameter:
    """Return the parameter for a setting that many runs change, so that they need no JSON object."""
    setting = next(field for field in fields(kind) if field.name == name)
    meaning = describe(setting)
    return Parameter(name, setting.type, setting.default, f"{meaning[0].upper()}{meaning[1:]}.", pipelines=pipelines)


def _object(kind: type[Settings], description: str, **where: Any) -> Parameter:
    return Parameter(kind.PARAMETER, dict[str, Any], {}, description, **where)


# Required parameters come first, as in every Python signature.
PARAMETERS = (
    Parameter(
        "dataset_uri",
        str,
        REQUIRED,
        "Dataset: s3://BUCKET/PREFIX; to train, with the folders train/, val/ and test/.",
        pipelines=PIPELINES,
        is_local=True,
    ),
    Parameter("model_uri", str, REQUIRED, "URI under which models are published: s3://BUCKET/PREFIX.", is_local=True),
    Parameter("s3_endpoint", str, "", "URL of the S3 server; empty: AWS.", pipelines=PIPELINES, is_local=True),
    Parameter(
        "s3_secret",
        str,
        DEFAULT_SECRET,
        "Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; without it, the pods' service account is used.",
        pipelines=PIPELINES,
    ),
    Parameter(
        "dataset_access",
        str,
        "credentials",
        "How to access the dataset in S3: credentials, anonymous (a public bucket) or requester-pays.",
        pipelines=PIPELINES,
        is_local=True,
    ),
    _from_setting(Storage, "staging_claim", PIPELINES),
    _from_setting(Storage, "staging_size", PIPELINES),
    _from_setting(Storage, "output_claim"),
    _from_setting(Storage, "exposure", PIPELINES),
    _from_setting(Storage, "storage_class", PIPELINES),
    _object(Storage, "Other storage settings, as a JSON object.", pipelines=PIPELINES),
    Parameter("workers", int, 2, "Training pods, including the Master (PyTorch) or Chief (TensorFlow).", is_local=True),
    Parameter(
        "min_workers",
        int,
        0,
        "Min pods with which an elastic job continues after losing others; 0: not elastic, all pods restart.",
        pipelines=("train-pytorch",),
        is_local=True,
    ),
    Parameter(
        "max_workers",
        int,
        0,
        "Max pods to which an elastic job grows, if there is room or an autoscaler adds them; 0: as many as workers.",
        pipelines=("train-pytorch",),
        is_local=True,
    ),
    Parameter(
        "processes_per_worker",
        int,
        0,
        "PyTorch processes in each pod; 0: one for each GPU, or one without GPUs.",
        pipelines=("train-pytorch",),
        is_local=True,
    ),
    Parameter(
        "launcher",
        str,
        "auto",
        "Launcher of the training pods: training-operator, trainer or job; auto: the first that the cluster has.",
        is_local=True,
    ),
    _from_setting(Placement, "cpu"),
    _from_setting(Placement, "memory"),
    _from_setting(Placement, "gpus"),
    _from_setting(Placement, "shm_size"),
    _object(Placement, "Other settings for where and how pods run, as a JSON object.", pipelines=PIPELINES),
    Parameter(
        "evaluation_placement",
        dict[str, Any],
        {},
        "Settings of placement that differ for the evaluation, which has one GPU at most if this sets no gpus.",
    ),
    _object(TrainConfig, "Training settings that differ from their defaults, as a JSON object.", is_local=True),
    Parameter(
        "min_accuracy",
        float,
        0.0,
        "Accuracy on the test split that a model needs to be published; 0: no minimum.",
        is_local=True,
    ),
    Parameter(
        "gate",
        str,
        "",
        "Conditions that a model must meet to be published, on the test split: accuracy>=0.9, loss<0.3, not worse than "
        "latest by 0.005; empty: none.",
        is_local=True,
    ),
    Parameter(
        "skip_unchanged",
        bool,
        False,
        "Skip training and keep the latest model if dataset, settings, number of processes and image are unchanged.",
    ),
)


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
    return [parameter for parameter in PARAMETERS if pipeline in parameter.pipelines]


def with_defaults(parameters: Iterable[Parameter], defaults: Mapping[str, Any]) -> list[Parameter]:
    """Return the parameters, some of them with other defaults."""
    return [replace(parameter, default=defaults.get(parameter.name, parameter.default)) for parameter in parameters]


def signature_of(parameters: Iterable[Parameter]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=parameter.default,
                annotation=get_origin(parameter.type) or parameter.type,
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
