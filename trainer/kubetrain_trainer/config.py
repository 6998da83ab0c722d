"""TrainConfig: every setting of a training, as one frozen dataclass that turns into JSON and into flags and back."""

import argparse
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from kubetrain_trainer.errors import InvalidSetting, did_you_mean


def setting(
    default: Any,
    meaning: str,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field with its meaning (and unit) and the values it takes."""
    rules = {"meaning": meaning, "minimum": minimum, "above": above, "maximum": maximum, "choices": choices}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=rules)
    return field(default=default, metadata=rules)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    model: str = setting(
        "digits_cnn",
        "digits_cnn, torchvision:NAME or keras:NAME, or package.module:function, which builds a Task of your own",
    )
    model_args: dict[str, Any] = setting({}, "extra keyword arguments for the model, or for your own task to read")
    data: str = setting(
        "image_folder",
        "where samples come from: <split>/<class>/<image>; or <split>/*.tar, by WebDataset's convention, as "
        "`kubetrain pack` writes them; or nowhere, for a try",
        choices=("image_folder", "tar_shards", "synthetic"),
    )
    image_size: int = setting(0, "pixels of an image's side; 0: the model's own (digits_cnn 8, others 224)", minimum=0)
    synthetic_samples: int = setting(512, "samples a split of synthetic data has", minimum=1)
    synthetic_classes: int = setting(10, "classes synthetic data has", minimum=2)
    validation_split: str = setting("val", "folder of the dataset that chooses the best checkpoint")
    test_split: str = setting("test", "folder of the dataset that the finished model is judged on")

    epochs: int = setting(15, "passes over the training data", minimum=1)
    max_steps: int = setting(0, "stop after this many steps; 0: no limit", minimum=0)
    batch_size: int = setting(32, "samples per process and step", minimum=1)
    accumulate: int = setting(
        1,
        "parts, of two samples or more, that each process computes its batch_size in, adding up their gradients: raise "
        "it where memory runs out; steps and rate stay as they are, only batch normalization sees smaller batches",
        minimum=1,
    )
    seed: int = setting(0, "what initialization, order and dropout derive from", minimum=0, maximum=2**32 - 1)

    precision: str = setting(
        "auto",
        "what the model computes in, its weights being fp32; auto: bf16 where the hardware has it",
        choices=("auto", "fp32", "bf16"),
    )
    compile: bool = setting(
        False,
        "compile the model at the start (TensorFlow: by XLA), which takes a minute or more; pays on GPUs, seldom else",
    )

    optimizer: str = setting("sgd", "the update rule", choices=("sgd", "adamw"))
    learning_rate: float = setting(0.1, "peak rate for a global batch of base_batch_size", above=0)
    base_batch_size: int = setting(
        64, "global batch that learning_rate is meant for; lr_scaling says what becomes of it at others", minimum=1
    )
    lr_scaling: str = setting(
        "linear", "how the rate grows with the global batch; none: not at all", choices=("linear", "sqrt", "none")
    )
    warmup_epochs: float = setting(1.0, "epochs over which the rate rises to its peak", minimum=0)
    schedule: str = setting("cosine", "the rate after the warm-up", choices=("cosine", "step", "constant"))
    step_epochs: float = setting(0.0, "schedule step: epochs between two drops; 0: a third of all epochs", minimum=0)
    step_factor: float = setting(0.1, "schedule step: what each drop multiplies the rate by", above=0, maximum=1)
    momentum: float = setting(0.9, "momentum of sgd", minimum=0, maximum=1)
    weight_decay: float = setting(5e-4, "weight decay", minimum=0)
    label_smoothing: float = setting(
        0.0,
        "share of each label that is spread over all classes, in training alone: validation and test measure the "
        "plain loss (for models by name; a task of your own brings its own loss)",
        minimum=0,
        maximum=1,
    )
    clip_norm: float = setting(1.0, "largest norm of the gradient over all parameters; 0: no clipping", minimum=0)
    ema_decay: float = setting(
        0.0,
        "share that a moving average of the weights keeps at each step (less at first); the average is what is "
        "validated and exported; 0: none, the weights themselves are",
        minimum=0,
        maximum=0.999999,
    )

    on_nan: str = setting(
        "stop",
        "what to do about a step whose loss or gradient is NaN or infinite: end the training, saying where and why, or "
        "skip the step, which changes nothing then (ten in a row end the training; on a GPU the host waits for each "
        "step)",
        choices=("stop", "skip"),
    )

    checkpoint_every: int = setting(100, "steps between two checkpoints, each with an evaluation before it", minimum=1)
    keep_checkpoints: int = setting(3, "newest checkpoints that are kept, beside the best by metric", minimum=1)
    log_every: int = setting(10, "steps between two lines of metrics", minimum=1)
    metrics_port: int = setting(
        8000, "port of the chief that serves Prometheus metrics at /metrics; 0: none", minimum=0, maximum=65535
    )
    metric: str = setting("accuracy", "validation metric, or loss, that chooses the best checkpoint")
    metric_mode: str = setting(
        "auto",
        "whether more or less of the metric is better; auto: min for names that end in loss or error, else max",
        choices=("auto", "max", "min"),
    )
    select_checkpoint: str = setting("best", "checkpoint that becomes the model", choices=("best", "last"))
    resume_from: str = setting(
        "", "id of another run under the same output root whose newest checkpoint starts this one"
    )

    loader_workers: int = setting(
        -1,
        "PyTorch: processes that load data for each training process; -1: up to eight for a GPU, as the processors "
        "allow, and none without one (TensorFlow loads in threads, as many as are free)",
        minimum=-1,
    )
    communication: str = setting(
        "auto",
        "how processes talk; auto: nccl on GPUs, else gloo (TensorFlow: its ring)",
        choices=("auto", "nccl", "gloo"),
    )
    nccl_timeout_seconds: int = setting(
        600,
        "seconds a step, a batch of the validation, or waiting for another process may take before a process gives up, "
        "saying where it stands (the first step three times as long: it may compile)",
        minimum=1,
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _coerced(each.name, each.type, getattr(self, each.name))
            _check_rules(each.name, value, each.metadata)
            object.__setattr__(self, each.name, value)
        if "/" in self.resume_from or self.resume_from in (".", ".."):
            raise InvalidSetting(f"resume_from must be the id of another run, not the path '{self.resume_from}'")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read settings as JSON brings them.

        Raises:
            InvalidSetting: for an unknown name (with the nearest valid one), a wrong type or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise InvalidSetting(f"train_config must be a JSON object of settings, not {values!r}")
        for name in values:
            check_name(name)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def digest(self) -> str:
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def prefers_less(self) -> bool:
        """Whether less of the metric is better."""
        if self.metric_mode == "auto":
            return self.metric.endswith(("loss", "error"))
        return self.metric_mode == "min"

    def check_metric(self, measured: Iterable[str]) -> None:
        """
        Raises:
            InvalidSetting: where no checkpoint could be the best, its metric not being one that the task measures.
        """
        names = ["loss", *measured]
        if self.select_checkpoint == "best" and self.metric not in names:
            raise InvalidSetting(f"metric cannot be '{self.metric}': {did_you_mean(self.metric, names)}")

    @classmethod
    def add_flags(cls, parser: argparse._ActionsContainer) -> None:
        for each in fields(cls):
            parser.add_argument(_flag(each.name), metavar="VALUE", help=each.metadata["meaning"].replace("%", "%%"))

    @classmethod
    def from_flags(cls, arguments: argparse.Namespace) -> Self:
        given = {name: text for name in setting_names() if (text := getattr(arguments, name)) is not None}
        return cls.from_dict({name: parse_setting(name, text) for name, text in given.items()})

    def to_flags(self) -> tuple[str, ...]:
        """Flags for what differs from the defaults: the command line of a job says what is special about it."""
        usual = type(self)()
        changed = [name for name in setting_names() if getattr(self, name) != getattr(usual, name)]
        return tuple(part for name in changed for part in (_flag(name), _text(getattr(self, name))))


def setting_names() -> list[str]:
    return [each.name for each in fields(TrainConfig)]


def check_name(name: str) -> None:
    if name not in setting_names():
        raise InvalidSetting(f"unknown setting '{name}': {did_you_mean(name, setting_names())}")


def parse_setting(name: str, text: str) -> Any:
    """The value that a text on a command line stands for."""
    check_name(name)
    kind = {each.name: each.type for each in fields(TrainConfig)}[name]
    if kind is str:
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise InvalidSetting(f"{name} must be {_describe(kind)}, not '{text}'") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _coerced(name: str, kind: Any, value: Any) -> Any:
    """The value in the field's own type. kfp.local turns integers in a dict into floats: integral floats are taken."""
    if kind is int and _is_number(value) and float(value).is_integer():
        return int(value)
    if kind is float and _is_number(value):
        return float(value)
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind == dict[str, Any] and isinstance(value, Mapping):
        return _with_integers(value)
    raise InvalidSetting(f"{name} must be {_describe(kind)}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _with_integers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_integers(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_integers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _describe(kind: Any) -> str:
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}.get(kind, "a JSON object")


def _check_rules(name: str, value: Any, rules: Mapping[str, Any]) -> None:
    if rules["choices"] and value not in rules["choices"]:
        raise InvalidSetting(f"{name} cannot be '{value}': {did_you_mean(value, rules['choices'])}")
    if rules["minimum"] is not None and value < rules["minimum"]:
        raise InvalidSetting(f"{name} must be at least {rules['minimum']}, not {_short(value)}")
    if rules["above"] is not None and value <= rules["above"]:
        raise InvalidSetting(f"{name} must be above {rules['above']}, not {_short(value)}")
    if rules["maximum"] is not None and value > rules["maximum"]:
        raise InvalidSetting(f"{name} must be at most {rules['maximum']}, not {_short(value)}")


def _short(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
