"""TrainConfig: every setting of a training."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings import DEFAULTS_VERSION, Settings, setting


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    CALLED: ClassVar[str] = "train_config"

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
        "PyTorch: processes that load data for each training process; -1: up to eight for a GPU, as the CPUs "
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
        super().__post_init__()
        if "/" in self.resume_from or self.resume_from in (".", ".."):
            raise InvalidSetting(f"resume_from must be the id of another run, not the path '{self.resume_from}'")

    @property
    def digest(self) -> str:
        """The hash of the settings that differ from their defaults. Releases up to 0.1.0 hashed all settings."""
        canonical = json.dumps([DEFAULTS_VERSION, self.changed_settings()], sort_keys=True, separators=(",", ":"))
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
