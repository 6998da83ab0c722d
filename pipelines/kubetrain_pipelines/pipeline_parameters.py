"""The parameters of kubetrain's pipelines: name, type, default and description of each, declared only here.

The signatures of the pipelines, `--set`, the forms of the Kubeflow Pipelines UI and docs/settings.md derive from them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from functools import wraps
from typing import Any, TypeVar, get_origin

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.object_store.credentials import DEFAULT_SECRET
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.frameworks import PACKAGES
from kubetrain_trainer.settings import Settings

FRAMEWORKS = {f"train-{framework}": framework for framework in PACKAGES}
"""The framework of each pipeline that trains."""
TRAINING = tuple(FRAMEWORKS)
PIPELINES = (*TRAINING, "sync-only")
REQUIRED = inspect.Parameter.empty

Function = TypeVar("Function", bound=Callable[..., object])


@dataclass(frozen=True, kw_only=True)
class Parameter:
    name: str
    type: Any
    """str, int, float, bool, dict[str, Any] or list[Any]."""
    description: str
    default: Any = REQUIRED
    pipelines: tuple[str, ...] = TRAINING
    is_local: bool = False
    """True if `kubetrain run` takes it, which needs no PVCs, pods or secrets."""

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


def describe(setting: "Field[Any]") -> str:
    """Return the meaning of a setting with its choices."""
    choices = [choice for choice in setting.metadata["choices"] if choice]
    return f"{setting.metadata['meaning']} ({', '.join(choices)})" if choices else setting.metadata["meaning"]


def _from_setting(kind: type[Settings], name: str, pipelines: tuple[str, ...] = TRAINING) -> Parameter:
    """Return the parameter for a setting that many runs change, and that therefore needs no JSON object."""
    setting = next(each for each in fields(kind) if each.name == name)
    sentence = f"{describe(setting)}."
    return Parameter(
        name=name,
        type=setting.type,
        description=sentence[0].upper() + sentence[1:],
        default=setting.default,
        pipelines=pipelines,
    )


PARAMETERS = (
    Parameter(
        name="dataset_uri",
        type=str,
        description="Dataset: s3://BUCKET/PREFIX; to train, with the folders train/, val/ and test/.",
        pipelines=PIPELINES,
        is_local=True,
    ),
    Parameter(
        name="model_uri",
        type=str,
        description="Where to publish versions of the model: s3://BUCKET/PREFIX.",
        is_local=True,
    ),
    Parameter(
        name="s3_endpoint",
        type=str,
        description="URL of the S3 server; empty: AWS.",
        default="",
        pipelines=PIPELINES,
        is_local=True,
    ),
    Parameter(
        name="s3_secret",
        type=str,
        description="Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; "
        "if it doesn't exist, the pods' service account is used.",
        default=DEFAULT_SECRET,
        pipelines=PIPELINES,
    ),
    Parameter(
        name="dataset_access",
        type=str,
        description="How to access the dataset in S3: credentials, anonymous (a public bucket) or requester-pays.",
        default="credentials",
        pipelines=PIPELINES,
        is_local=True,
    ),
    _from_setting(Storage, "staging_claim", PIPELINES),
    _from_setting(Storage, "staging_size", PIPELINES),
    _from_setting(Storage, "output_claim"),
    _from_setting(Storage, "exposure", PIPELINES),
    _from_setting(Storage, "storage_class", PIPELINES),
    Parameter(
        name=Storage.PARAMETER,
        type=dict[str, Any],
        description="Other settings of the storage, as a JSON object.",
        default={},
        pipelines=PIPELINES,
    ),
    Parameter(
        name="workers",
        type=int,
        description="Number of training pods, including the Master (PyTorch) or Chief (TensorFlow).",
        default=2,
        is_local=True,
    ),
    Parameter(
        name="min_workers",
        type=int,
        description="Min number of pods that training continues with after losing others (an elastic job); "
        "0: all pods restart.",
        default=0,
        pipelines=("train-pytorch",),
        is_local=True,
    ),
    Parameter(
        name="processes_per_worker",
        type=int,
        description="Training processes in each pod: one for each GPU.",
        default=1,
        pipelines=("train-pytorch",),
        is_local=True,
    ),
    _from_setting(Placement, "cpu"),
    _from_setting(Placement, "memory"),
    _from_setting(Placement, "gpus"),
    _from_setting(Placement, "shm_size"),
    Parameter(
        name=Placement.PARAMETER,
        type=dict[str, Any],
        description="Other settings for where and how pods run, as a JSON object.",
        default={},
        pipelines=PIPELINES,
    ),
    Parameter(
        name="train_config",
        type=dict[str, Any],
        description="Settings of the training that differ from their defaults, as a JSON object.",
        default={},
        is_local=True,
    ),
    Parameter(
        name="min_accuracy",
        type=float,
        description="Accuracy on the test split that a model needs to be published; 0 publishes any model.",
        default=0.0,
        is_local=True,
    ),
    Parameter(
        name="skip_unchanged",
        type=bool,
        description="Skip training and keep the latest model if dataset, configuration and image digest are unchanged.",
        default=False,
    ),
)


def framework_of(pipeline: str) -> str:
    """Return the framework of a pipeline that trains.

    Raises:
        InvalidSetting: if there is no such pipeline.
    """
    if pipeline not in FRAMEWORKS:
        raise InvalidSetting(f"unknown pipeline '{pipeline}': {did_you_mean(pipeline, FRAMEWORKS)}")
    return FRAMEWORKS[pipeline]


def function_path(pipeline: str) -> str:
    """Return the import path of the function that defines a pipeline."""
    name = pipeline.replace("-", "_")
    return f"kubetrain_pipelines.{name}:{name}"


def parameters_of(pipeline: str) -> list[Parameter]:
    return [each for each in PARAMETERS if pipeline in each.pipelines]


def with_defaults(parameters: Iterable[Parameter], defaults: Mapping[str, Any]) -> list[Parameter]:
    """Return the parameters, some of them with other defaults."""
    return [replace(each, default=defaults.get(each.name, each.default)) for each in parameters]


def signature_of(parameters: Iterable[Parameter]) -> inspect.Signature:
    return inspect.Signature(
        [
            inspect.Parameter(
                each.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=each.default,
                annotation=get_origin(each.type) or each.type,
            )
            for each in parameters
        ]
    )


def with_parameters(pipeline: str) -> Callable[[Function], Function]:
    """Give a function that takes **parameters the signature and docstring which KFP compiles a pipeline from."""
    parameters = parameters_of(pipeline)
    signature = signature_of(parameters)

    def decorated(function: Function) -> Function:
        @wraps(function)
        def pipeline_function(*values: Any, **named: Any) -> object:
            return function(**signature.bind(*values, **named).arguments)

        declared: Any = pipeline_function
        declared.__signature__ = signature.replace(return_annotation=inspect.signature(function).return_annotation)
        arguments = "\n".join(f"    {each.name}: {each.description}" for each in parameters)
        declared.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{arguments}\n"
        return pipeline_function  # type: ignore[return-value]

    return decorated
