"""The settings of a training."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings.base import setting
from kubetrain_trainer.settings.config_checks import check_together
from kubetrain_trainer.settings.data_settings import DataSettings
from kubetrain_trainer.settings.entry import parse_entry

CHANGEABLE = (
    *("checkpoint_every", "validate_every", "keep_checkpoints", "log_every", "profile_steps", "metrics_port"),
    *("loader_workers", "nccl_timeout_seconds", "skip_damaged", "preflight", "avoid_bad_nodes"),
    *("mlflow_uri", "mlflow_experiment"),
    *("sharding", "tensor_parallel", "activation_checkpointing", "weights_format", "compile_mode"),
)
"""Settings that a run may change when it resumes, because they do not decide what it learns, or let it continue."""
AUTOMATIC_MODES = {"accuracy": "max", "loss": "min", "error": "min"}
"""metric_mode=auto, by the ending of the metric's name."""
OTHER_METRIC = "set metric=loss, or add it to the metrics of the Task"


@dataclass(frozen=True, kw_only=True)
class TrainConfig(DataSettings):
    PARAMETER: ClassVar[str] = "train_config"

    epochs: int = setting(15, "passes over the training data", minimum=1)
    max_steps: int = setting(
        0,
        "stop after this many steps, in which the learning rate then goes through its whole schedule; 0: no limit",
        minimum=0,
    )
    batch_size: int = setting(32, "samples per process and step", minimum=1)
    accumulate: int = setting(
        1,
        "number of parts (at least two samples each) that each process splits its batch into, adding up their "
        "gradients; raise it if memory runs out: steps and learning rate stay the same, only batch normalization sees "
        "smaller batches",
        minimum=1,
    )
    global_batch_size: int = setting(
        0,
        "samples of all processes at each step, however many train: each computes its share in parts of batch_size "
        "samples, so that steps and learning rate stay the same if workers are lost or added; 0: batch_size for each "
        "process",
        minimum=0,
    )
    seed: int = setting(0, "seed for initialization, sample order and dropout", minimum=0, maximum=2**32 - 1)

    precision: str = setting(
        "auto",
        "precision of the computation (weights stay in fp32); auto: bf16 if the hardware supports it, else fp32; fp16: "
        "for GPUs without bf16, with a scaled loss, skipping the steps whose gradient overflows",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    tf32: bool = setting(
        True,
        "whether GPUs with TF32 use it for what is in fp32: several times as fast, with the range of fp32, but only "
        "three decimal digits of the factors in each product",
    )
    compile: bool = setting(
        False,
        "compile the model at the start (TensorFlow: with XLA), which takes a minute or more; rarely pays off on CPUs. "
        "PyTorch validates without it, and trains without it on a batch of another size, such as the last of an epoch",
    )
    compile_mode: str = setting(
        "default",
        "PyTorch: how compile does it, as torch.compile's mode; reduce-overhead: the GPU repeats the model's work as a "
        "whole (CUDA graphs), for steps of many small computations, with which the CPU cannot keep up; max-autotune: "
        "the same, after trying several ways of computing, which takes minutes. Both need compile=true and "
        "sharding=none, and change nothing on CPUs",
        choices=("default", "reduce-overhead", "max-autotune"),
    )

    sharding: str = setting(
        "none",
        "PyTorch: what is split over the processes, so that larger models fit; full: each parameter with its gradient "
        "and optimizer state, over all processes; hybrid: over those of each pod; none: each process has all",
        choices=("none", "full", "hybrid"),
    )
    tensor_parallel: int = setting(
        1,
        "PyTorch: processes of a pod that compute each layer together, as the task's plan says; needs sharding",
        minimum=1,
    )
    activation_checkpointing: bool = setting(
        False,
        "PyTorch: compute each layer again in the backward pass instead of keeping what it computed: less memory for "
        "about a third more computation",
    )

    optimizer: str = setting("sgd", "optimizer", choices=("sgd", "adamw"))
    learning_rate: float = setting(0.1, "peak learning rate for a global batch of base_batch_size", above=0)
    base_batch_size: int = setting(
        64, "global batch size that learning_rate is meant for; lr_scaling adapts the rate to other sizes", minimum=1
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
    warmup_steps: int = setting(0, "steps over which the learning rate rises instead; 0: warmup_epochs", minimum=0)
    schedule: str = setting(
        "cosine",
        "learning rate schedule after the warmup; wsd: constant, then falling linearly in the decay_share",
        choices=("cosine", "linear", "wsd", "step", "constant"),
    )
    min_rate: float = setting(
        0.0, "lowest learning rate that a schedule falls to, as a fraction of the peak", minimum=0, maximum=1
    )
    decay_share: float = setting(
        0.2, "schedule=wsd: the last part of the training, in which the learning rate falls", above=0, maximum=1
    )
    step_epochs: float = setting(0.0, "schedule=step: epochs between drops; 0: a third of the training", minimum=0)
    step_factor: float = setting(0.1, "schedule=step: factor of the learning rate at each drop", above=0, maximum=1)
    momentum: float = setting(0.9, "momentum of sgd", minimum=0, maximum=0.999999)
    nesterov: bool = setting(False, "whether sgd uses Nesterov momentum")
    beta1: float = setting(0.9, "adamw: decay of the average of gradients", minimum=0, maximum=0.999999)
    beta2: float = setting(0.999, "adamw: decay of the average of their squares", minimum=0, maximum=0.999999)
    epsilon: float = setting(
        0.0,
        "adamw: number added to the denominator (TensorFlow: before the correction of its bias); 0: 1e-8 (TensorFlow "
        "1e-7)",
        minimum=0,
    )
    weight_decay: float = setting(5e-4, "weight decay", minimum=0)
    decay_norms: bool = setting(
        True, "whether weight decay also applies to biases and normalization, which are parameters of one dimension"
    )
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

    on_nan: str = setting(
        "stop",
        "what to do if a step's loss or gradient is NaN or infinite: fail the training, naming the step and likely "
        "causes, or skip the step (ten in a row fail the training; on a GPU the host then waits for each step)",
        choices=("stop", "skip"),
    )

    checkpoint_every: int = setting(100, "steps between checkpoints", minimum=1)
    validate_every: int = setting(
        0,
        "steps after which the next checkpoint is validated before it is saved, as the first and last always are; "
        "0: each",
        minimum=0,
    )
    keep_checkpoints: int = setting(3, "number of newest checkpoints to keep, besides the best one", minimum=1)
    log_every: int = setting(10, "steps between lines of metrics", minimum=1)
    metrics_port: int = setting(
        8000, "port on which the chief serves Prometheus metrics at /metrics; 0: off", minimum=0, maximum=65535
    )
    mlflow_uri: str = setting(
        "",
        "address of an MLflow server to which rank 0 logs settings and metrics, unless Kubeflow Pipelines has created "
        "an MLflow run for the step; empty: none",
    )
    mlflow_experiment: str = setting("kubetrain", "mlflow_uri: experiment in which the run is created")
    profile_steps: str = setting(
        "",
        "steps of which rank 0 records a trace in the folder profile, such as 100:110, both included; they take longer",
    )
    metric: str = setting("accuracy", "validation metric (or loss) that decides which checkpoint is the best")
    metric_mode: str = setting(
        "auto",
        "whether the max or the min of the metric is best; auto: min if its name ends in loss or error, max if it ends "
        "in accuracy; other metrics need max or min",
        choices=("auto", "max", "min"),
    )
    select_checkpoint: str = setting("best", "checkpoint that becomes the model", choices=("best", "last"))
    weights_format: str = setting(
        "auto",
        "PyTorch: files of the exported model; pytorch: model.pt; safetensors: model.safetensors, or several files and "
        "an index if it has more than 2 GiB; auto: safetensors if sharding is set, else pytorch",
        choices=("auto", "pytorch", "safetensors"),
    )
    resume_from: str = setting(
        "", "start from the newest checkpoint of another run: its id, under the same output root"
    )

    initial_weights: str = setting(
        "",
        "weights to start from: a path under the output root (the id of another run that has finished, the folder of a "
        "published model, or a file of weights), or s3:// with an object or a published model. The last layer starts "
        "at random if it has other classes",
    )
    freeze: str = setting(
        "",
        "layers that keep their weights: names of parameters (TensorFlow: layers) or their beginnings, with * for any "
        "characters, separated by commas",
    )
    layer_rate: float = setting(
        1.0,
        "learning rate of each layer as a fraction of that of the next one; 1: the same for all. Layers are numbered "
        "parts of the model, such as layer3 or features.5",
        above=0,
        maximum=1,
    )

    loader_workers: int = setting(
        -1,
        "PyTorch: data loading processes per training process; -1: up to 16 for a GPU, limited by the CPUs, and "
        "none without one (TensorFlow loads data in threads and chooses their number itself)",
        minimum=-1,
    )
    communication: str = setting(
        "auto",
        "communication backend; auto: nccl on GPUs, else gloo (TensorFlow: its own ring algorithm)",
        choices=("auto", "nccl", "gloo"),
    )
    exchange_precision: str = setting(
        "fp32",
        "precision in which processes exchange gradients; bf16 (PyTorch) halves what the network carries",
        choices=("fp32", "bf16"),
    )
    exchange_mb: int = setting(
        0,
        "megabytes of gradients that processes exchange at once, while the rest is still computed; 0: 25 (PyTorch: the "
        "first ones fewer). TensorFlow adds the gradient that exceeds them",
        minimum=0,
    )
    preflight: str = setting(
        "auto",
        "PyTorch: whether each process multiplies matrices and exchanges 64 MB with its neighbors before the first "
        "step, to name slow or faulty GPUs and slow links between nodes; auto: if several pods with GPUs train",
        choices=("auto", "true", "false"),
    )
    avoid_bad_nodes: bool = setting(
        False,
        "PyTorch: whether the job starts again without the nodes whose links or devices the preflight found to be bad; "
        "the cluster needs other nodes for that",
    )
    nccl_timeout_seconds: int = setting(
        600,
        "timeout for a step, a validation batch, or waiting for another process; a process that exceeds it reports "
        "where it hangs and exits (the first step may take three times as long, because it may compile, and each part "
        "of the start twelve times, counted from when the process last computed)",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if parse_entry(self.entry):  # it exports what it chooses, when it ends
            object.__setattr__(self, "select_checkpoint", "last")
        check_together(self)

    @property
    def weights_uri(self) -> str:
        """Where the initial weights are in S3, from which the sync brings them; empty if they are not there."""
        return self.initial_weights if self.initial_weights.startswith("s3://") else ""

    @property
    def best_is(self) -> str:
        """The metric_mode, where auto is resolved: max, min or unknown."""
        if self.metric_mode != "auto":
            return self.metric_mode
        return next((mode for ending, mode in AUTOMATIC_MODES.items() if self.metric.endswith(ending)), "unknown")

    @property
    def exports_safetensors(self) -> bool:
        if self.weights_format == "auto":
            return self.sharding != "none"
        return self.weights_format == "safetensors"

    @property
    def steps_to_profile(self) -> range:
        found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", self.profile_steps)
        return range(int(found[1]), int(found[2]) + 1) if found else range(0)

    @property
    def skips_steps(self) -> bool:
        """Return True if a step whose loss or gradient is not finite is skipped, for which it has to be awaited."""
        return self.on_nan == "skip" or self.precision == "fp16"

    def global_batch(self, processes: int) -> int:
        """Return the samples of all processes (TensorFlow: replicas) at each step.

        Raises:
            InvalidSetting: if global_batch_size is too small for them.
        """
        if 0 < self.global_batch_size < 4 * processes:  # two in the smallest step, which is half as large
            raise InvalidSetting(
                f"global_batch_size must be at least {4 * processes}, four samples for each of {processes} processes, "
                f"not {self.global_batch_size}"
            )
        return self.global_batch_size or self.batch_size * processes

    def check_metric(self, measured: Iterable[str]) -> None:
        """Check that the task measures the metric that chooses the best checkpoint.

        Raises:
            InvalidSetting: if it does not.
        """
        names = ["loss", *measured]
        if self.select_checkpoint == "best" and self.metric not in names:
            remedy = did_you_mean(self.metric, names) if "metric" in self.changed_settings() else OTHER_METRIC
            raise InvalidSetting(f"metric cannot be '{self.metric}', which the task does not measure: {remedy}")
