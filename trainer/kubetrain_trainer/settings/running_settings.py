"""The settings of how a training runs: what it keeps, how fast it is and what it reports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings.base import Settings, setting
from kubetrain_trainer.settings.metric import Metric, parse_metric

OTHER_METRIC = "set train.metric=loss, or add it to the metrics of the Task"


@dataclass(frozen=True)
class CheckpointSettings(Settings):
    checkpoint_every: int = setting(100, "steps between checkpoints", minimum=1, is_changeable=True)
    validate_every: int = setting(
        0,
        "steps after which the next checkpoint is validated before it is saved, as the first and last always are; "
        "0: each",
        minimum=0,
        is_changeable=True,
    )
    keep_checkpoints: int = setting(
        3,
        "number of newest checkpoints to keep, besides the best one",
        minimum=1,
        is_changeable=True,
        entry="used",
    )
    metric: str = setting(
        "accuracy",
        "validation metric (or loss) that decides which checkpoint is the best. Its min is best if its name ends in "
        "loss or error, its max if it ends in accuracy; write others as max:NAME or min:NAME",
        entry="used",
    )
    select_checkpoint: str = setting(
        "best",
        "checkpoint that becomes the model",
        choices=("best", "last"),
        entry="used",
    )
    weights_format: str = setting(
        "auto",
        "files of the exported model; pytorch: model.pt; safetensors: model.safetensors, or several files and an index "
        "if it has more than 2 GiB; auto: safetensors if sharding is set, else pytorch",
        choices=("auto", "pytorch", "safetensors"),
        only="pytorch",
        entry="refused",
        is_changeable=True,
    )
    resume_from: str = setting(
        "",
        "start from the newest checkpoint of another run: its id, under the same output root",
        entry="used",
    )
    outputs: list[Any] = setting(
        [],
        "files that become the model of a script of your own, as patterns in its working directory, such as "
        '["model_best.pth.tar", "outputs/"]: needed only if it writes elsewhere than into $KUBETRAIN_OUTPUT/export',
        is_changeable=True,
        entry="used",
    )
    publishes: bool = setting(
        True,
        "whether the run publishes a model; false: a script of your own uploads it, or makes none",
        is_changeable=True,
        entry="used",
    )

    @property
    def best_by(self) -> Metric:
        """The metric that decides which checkpoint is the best."""
        return parse_metric(self.metric)

    def check_metric(self, measured: Iterable[str]) -> None:
        """Check that the task measures the metric that chooses the best checkpoint.

        Raises:
            InvalidSetting: if it does not.
        """
        name, names = self.best_by.name, ["loss", *measured]
        if self.select_checkpoint == "best" and name not in names:
            remedy = did_you_mean(name, names) if "metric" in self.changed_settings() else OTHER_METRIC
            raise InvalidSetting(f"train.metric cannot be '{name}', which the task does not measure: {remedy}")


@dataclass(frozen=True)
class SpeedSettings(Settings):
    precision: str = setting(
        "auto",
        "precision of the computation (weights stay in fp32); auto: bf16 if the hardware supports it, else tf32; tf32: "
        "fp32 with the tensor cores of GPUs that have TF32: several times as fast, with the range of fp32, but three "
        "decimal digits of the factors in each product; fp16: mixed precision for GPUs without bf16, with a scaled "
        "loss, skipping the steps whose gradient overflows",
        choices=("auto", "fp32", "tf32", "bf16", "fp16"),
        in_form=True,
    )
    compile: str = setting(
        "none",
        "compile the model at the start, which takes a minute or more and rarely pays off on CPUs: default, as "
        "torch.compile does (TensorFlow: XLA), or another `mode` of it. reduce-overhead: CUDA graphs, for steps of "
        "many small kernels; max-autotune: the same, after trying several kernels, which takes minutes. PyTorch "
        "validates without it, and trains without it on a batch of another size, such as the last of an epoch",
        choices=("none", "default", "reduce-overhead", "max-autotune"),
        pytorch_choices=("reduce-overhead", "max-autotune"),
        is_changeable=True,
    )
    sharding: str = setting(
        "none",
        "FSDP; full: shard parameters, gradients and optimizer state over all processes; hybrid: over those of each "
        "pod; none: each process has all",
        choices=("none", "full", "hybrid"),
        only="pytorch",
        entry="refused",
        is_changeable=True,
    )
    tensor_parallel: int = setting(
        1,
        "processes of a pod that compute each layer together, as the task's plan says; needs sharding",
        minimum=1,
        only="pytorch",
        entry="refused",
        is_changeable=True,
    )
    activation_checkpointing: bool = setting(
        False,
        "recompute activations in the backward pass: less memory, about a third more computation",
        only="pytorch",
        entry="refused",
        is_changeable=True,
    )
    allreduce_bucket_mb: int = setting(
        0,
        "bucket size of the gradient all-reduce, in megabytes; 0: 25 (PyTorch: the first bucket is smaller). "
        "TensorFlow adds the gradient that exceeds it",
        minimum=0,
    )
    allreduce_precision: str = setting(
        "fp32",
        "precision of the gradient all-reduce; bf16 halves what the network carries",
        choices=("fp32", "bf16"),
        pytorch_choices=("bf16",),
    )
    loader_workers: int = setting(
        -1,
        "data loading processes per training process; -1: up to 16 for a GPU, limited by the CPUs, and none without "
        "one (TensorFlow loads data in threads and chooses their number itself)",
        minimum=-1,
        only="pytorch",
        is_changeable=True,
    )

    @property
    def is_compiled(self) -> bool:
        return self.compile != "none"

    @property
    def uses_cuda_graphs(self) -> bool:
        return self.compile in ("reduce-overhead", "max-autotune")


@dataclass(frozen=True)
class ObservingSettings(Settings):
    log_every: int = setting(10, "steps between lines of metrics", minimum=1, is_changeable=True)
    metrics_port: int = setting(
        8000,
        "port on which rank 0 serves Prometheus metrics at /metrics; 0: off",
        minimum=0,
        maximum=65535,
        is_changeable=True,
        entry="used",
    )
    profile_steps: str = setting(
        "",
        "steps of which rank 0 records a trace in the folder profile, such as 100:110, both included; they take longer",
        is_changeable=True,
        entry="refused",
    )
    preflight: str = setting(
        "auto",
        "whether each process multiplies matrices and exchanges 64 MB with its neighbors before the first step, to "
        "name slow or faulty GPUs and slow links between nodes; auto: if several pods with GPUs train; avoid: always, "
        "and the job starts again without the nodes found to be bad, for which the cluster needs other nodes",
        choices=("auto", "true", "false", "avoid"),
        only="pytorch",
        entry="refused",
        is_changeable=True,
    )
    nccl_timeout_seconds: int = setting(
        600,
        "timeout for a step, a validation batch, or waiting for another process; a process that exceeds it reports "
        "where it hangs and exits (the first step may take three times as long, because it may compile, and each part "
        "of the start twelve times, counted from when the process last computed)",
        minimum=1,
        is_changeable=True,
    )

    @property
    def steps_to_profile(self) -> range:
        found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", self.profile_steps)
        return range(int(found[1]), int(found[2]) + 1) if found else range(0)
