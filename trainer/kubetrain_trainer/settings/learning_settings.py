"""The settings of what a training learns from its data: its steps, its optimizer and its first weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import Settings, setting
from kubetrain_trainer.settings.optimizer_args import OPTIMIZERS
from kubetrain_trainer.settings.schedule_args import SCHEDULES


@dataclass(frozen=True)
class StepSettings(Settings):
    epochs: int = setting(15, "passes over the training data", minimum=1, in_form=True)
    max_steps: int = setting(
        0,
        "stop after this many steps, in which the learning rate then goes through its whole schedule; 0: no limit",
        minimum=0,
    )
    batch_size: int = setting(32, "samples per process and step", minimum=1, in_form=True)
    gradient_accumulation: int = setting(
        1,
        "micro-batches (of at least two samples each) that each process splits its batch into. Raise it if memory runs "
        "out: steps and learning rate stay the same, only batch normalization sees smaller batches",
        minimum=1,
    )
    global_batch_size: int = setting(
        0,
        "samples of all processes at each step, kept when workers are lost or added: each process computes its share "
        "in micro-batches of batch_size; 0: batch_size for each process",
        minimum=0,
    )
    seed: int = setting(
        0, "seed for initialization, sample order and dropout", minimum=0, maximum=2**32 - 1, in_form=True
    )
    on_nan: str = setting(
        "stop",
        "what to do if a step's loss or gradient is NaN or infinite: fail the training, naming the step and likely "
        "causes, or skip the step (ten in a row fail the training; on a GPU the host then waits for each step)",
        choices=("stop", "skip"),
    )

    def global_batch(self, processes: int) -> int:
        """Return the samples of all processes (TensorFlow: replicas) at each step.

        Raises:
            InvalidSetting: if global_batch_size is too small for them.
        """
        if 0 < self.global_batch_size < 4 * processes:  # two in the smallest step, which is half as large
            raise InvalidSetting(
                f"train.global_batch_size must be at least {4 * processes}, four samples for each of {processes} "
                f"processes, not {self.global_batch_size}"
            )
        return self.global_batch_size or self.batch_size * processes


@dataclass(frozen=True)
class LearningSettings(Settings):
    optimizer: str = setting("sgd", "optimizer", choices=tuple(OPTIMIZERS), in_form=True)
    optimizer_args: dict[str, Any] = setting(
        {}, 'options of the optimizer that differ from their defaults, such as {"momentum": 0.8}'
    )
    learning_rate: float = setting(
        0.1, "peak learning rate for a global batch of base_batch_size", above=0, in_form=True
    )
    base_batch_size: int = setting(
        64,
        "global batch size that learning_rate is meant for; lr_scaling adapts the rate to other sizes",
        minimum=1,
    )
    lr_scaling: str = setting(
        "linear",
        "how the learning rate grows with the global batch size; none: not at all",
        choices=("linear", "sqrt", "none"),
    )
    warmup_epochs: float = setting(
        1.0,
        "epochs over which the learning rate rises to its peak; fewer if max_steps ends the training before epochs",
        minimum=0,
    )
    schedule: str = setting(
        "cosine",
        "learning rate schedule after the warmup; wsd: constant, then falling linearly",
        choices=tuple(SCHEDULES),
    )
    schedule_args: dict[str, Any] = setting(
        {}, 'options of the schedule that differ from their defaults, such as {"warmup_steps": 500}'
    )
    weight_decay: float = setting(5e-4, "weight decay", minimum=0)
    label_smoothing: float = setting(
        0.0,
        "fraction of each label that is spread over all classes, in training only: validation and test measure the "
        "plain loss (no effect on your own tasks, which define their own loss)",
        minimum=0,
        maximum=1,
    )
    clip_norm: float = setting(1.0, "maximum norm of the gradient over all parameters; 0: no clipping", minimum=0)
    ema_decay: float = setting(
        0.0,
        "decay of a moving average of the weights (lower at first), which is validated and exported instead of the "
        "weights themselves; 0: no average",
        minimum=0,
        maximum=0.999999,
    )

    @cached_property
    def optimizing(self) -> Any:
        """The options of the optimizer, with their defaults."""
        return OPTIMIZERS[self.optimizer].within(f"optimizer={self.optimizer}", self.optimizer_args)

    @cached_property
    def scheduling(self) -> Any:
        """The options of the schedule, with their defaults."""
        return SCHEDULES[self.schedule].within(f"schedule={self.schedule}", self.schedule_args)


@dataclass(frozen=True)
class StartSettings(Settings):
    initial_weights: str = setting(
        "",
        "weights to start from: a path under the output root (the id of another run that has finished, the folder of a "
        "published model, or a file of weights), or s3:// with an object or a published model. The last layer starts "
        "at random if it has other classes",
        entry="refused",
        name="model.start",
        in_form=True,
    )
    freeze: str = setting(
        "",
        "layers that keep their weights: names of parameters (TensorFlow: layers) or their beginnings, with * for any "
        "characters, separated by commas",
        entry="refused",
    )
    layer_rate: float = setting(
        1.0,
        "learning rate of each layer as a fraction of that of the next one; 1: the same for all. Layers are numbered "
        "parts of the model, such as layer3 or features.5",
        above=0,
        maximum=1,
        entry="refused",
    )

    @property
    def weights_uri(self) -> str:
        """The URI of the initial weights if the sync copies them from S3, else an empty string."""
        return self.initial_weights if self.initial_weights.startswith("s3://") else ""
