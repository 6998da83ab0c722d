"""Tasks with parts of their own: optimizers, schedules, steps, data and metrics. `model_args` names one."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kubetrain_trainer import Step, Task
from kubetrain_trainer.processes.process_role import torchrun_role
from kubetrain_trainer.settings.config import TrainConfig

SAMPLES = 45  # an epoch ends with a smaller batch


def build(config: TrainConfig, data_dir: Path) -> Task:
    return TASKS[config.model_args["task"]](config)


class Points:
    """Points with an angle each; the first half of them is class 0. Validation has an odd number of them."""

    def __init__(self, split: str) -> None:
        self.size = SAMPLES if split == "train" else 33

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.sin(torch.arange(1.0, 5.0) * (index + 1)), int(2 * index >= self.size)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def joined(outputs: Tensor, targets: Tensor) -> Tensor:
    """Broadcast outputs of shape (batch, 1) and targets of shape (batch,) to (batch, batch)."""
    return (outputs - targets).square().mean(1)


def joined_by_torch(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets.float(), reduction="none").mean(1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def noted(what: str, value: Any) -> Any:
    with Path("order").open("a") as file:
        file.write(f"{what}\n")
    return value


def plain(config: TrainConfig, **parts: Any) -> Task:
    return Task(**{"model": perceptron(), "data": Points, "loss": cross_entropy, **parts})


# Optimizers, schedules and samplers


class Counting(torch.optim.SGD):
    """Keeps a number in its groups that changes its steps, as optimizers without a schedule do."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__([{"params": list(parameters), "steps": 0}], lr)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["momentum"] = 1 - 1 / (2 + group["steps"])
            group["steps"] += 1
        super().step(closure)


def two_optimizers(model: Any) -> dict[str, torch.optim.Optimizer]:
    first, last = model[0], model[2]
    return {
        "first": Counting(first.parameters(), lr=0.5),
        "last": torch.optim.AdamW([{"params": [last.weight], "lr": 0.02}, {"params": [last.bias]}], lr=0.01),
    }


def halved_each_ten(step: int) -> float:
    return 0.5 ** (step // 10)


def half_of_the_samples(epoch: int) -> Tensor:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))[: SAMPLES // 2]


def groups(model: Any) -> list[dict[str, Any]]:
    return [
        {"params": [each for each in model.parameters() if each.ndim > 1], "lr": 0.4},
        {"params": [each for each in model.parameters() if each.ndim == 1], "weight_decay": 0.0},
    ]


# What differs between processes


class Fewer(Points):
    """The training samples of one more file in each process."""

    def __init__(self, split: str) -> None:
        super().__init__(split)
        self.size += torchrun_role().rank * (split == "train")


class Unsorted(Points):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return super().__getitem__((index + 7 * torchrun_role().rank) % self.size)


class Restless(Points):
    """Samples with noise that no seed repeats."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        inputs, label = super().__getitem__(index)
        return inputs + torch.rand(4, generator=torch.Generator().manual_seed(time.monotonic_ns())), label


def unwrapped(config: TrainConfig) -> Task:
    model = perceptron()
    return plain(config, model=model, step=lambda step: updated(step, model))


def updated(step: Step, model: Any) -> Tensor:
    loss = step.mean(cross_entropy(model(step.inputs), step.targets))
    step.update(loss)
    return loss


def without_update(step: Step) -> Tensor:
    return step.mean(cross_entropy(step.model(step.inputs), step.targets))


class Faulty(nn.Linear):
    """Changes a weight of one process in the fourth step."""

    steps = 0

    def forward(self, points: Tensor) -> Tensor:
        self.steps += self.training
        if self.steps == 4 and torchrun_role().rank:
            self.weight.data[0, 0] += 3
        return super().forward(points)


# Batches


def padded(samples: list[tuple[Tensor, int]]) -> tuple[Any, Tensor]:
    words, labels = zip(*samples, strict=True)
    return Words(nn.utils.rnn.pad_sequence(words, batch_first=True), [len(each) for each in words]), torch.tensor(
        labels
    )


@dataclass(frozen=True)
class Words:
    ids: Tensor
    lengths: list[int]


class Texts(Points):
    """Sequences of different lengths."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.arange(1, 2 + index % 7) + 10 * (2 * index >= self.size), int(2 * index >= self.size)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 2, padding_idx=0)

    def forward(self, words: Words) -> Tensor:
        assert isinstance(words, Words)
        assert len(words.ids) == len(words.lengths)
        return self.words(words.ids).sum(1) / torch.tensor(words.lengths)[:, None]


# Data without indices


class Stream:
    """Points in an order that is drawn anew in each pass. It has a position, and noise from the global generators."""

    def __init__(self, split: str) -> None:
        role = torchrun_role()
        self.points = Points(split)
        self.mine = range(role.rank, len(self.points), role.world_size)
        self.passes, self.taken = 0, 0

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        generator = torch.Generator().manual_seed(self.passes)
        for position in torch.randperm(len(self.mine), generator=generator).tolist()[self.taken :]:
            self.taken += 1
            inputs, label = self.points[self.mine[position]]
            yield inputs + 0.1 * torch.rand(4), label
        self.passes, self.taken = self.passes + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes, "taken": self.taken, "a tensor": torch.tensor(self.taken)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["a tensor"] == state["taken"]
        self.passes, self.taken = state["passes"], state["taken"]


class Sized(Stream):
    def __len__(self) -> int:
        return len(self.points)


class Batches(Sized):
    """Yields batches, the smaller last one only for validation."""

    yields_batches = True
    size = 8

    def __init__(self, split: str) -> None:
        super().__init__(split)
        self.keeps_last = split != "train"

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        samples = super().__iter__()
        while batch := list(islice(samples, self.size)):
            if len(batch) == self.size or self.keeps_last:
                inputs, labels = zip(*batch, strict=True)
                yield torch.stack(inputs), torch.tensor(labels)


class Forgetful:
    def __init__(self, split: str) -> None:
        self.points = Points(split)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return (self.points[index] for index in range(len(self.points)))


class WithoutTensors(Forgetful):
    yields_batches = True

    def __iter__(self) -> Iterator[Any]:
        return iter([([1.0], [0])])


class Indexed(Points):
    yields_batches = True


class Empty(Sized):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return iter(())


class Unvalidated(Sized):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return super().__iter__() if len(self.points) == SAMPLES else iter(())


class Complicated(Sized):
    def state_dict(self) -> dict[str, Any]:
        return {"points": self.points}


class Scaled(Points):
    def __init__(self, split: str) -> None:
        super().__init__(split)
        self.scales = {"twice": lambda value: 2 * value}


# Own steps


class Gan(nn.ModuleDict):
    def __init__(self) -> None:
        super().__init__({"generator": nn.Linear(4, 4), "discriminator": perceptron(), "frozen": nn.Linear(4, 4)})
        self["frozen"].requires_grad_(False)

    def forward(self, points: Tensor) -> Tensor:
        return self["discriminator"](self["frozen"](points))


def adversarial(step: Step) -> Tensor:
    generator, discriminator = step.model["generator"], step.model["discriminator"]
    with step.autocast():
        fake = generator(step.inputs)
        real_scores, fake_scores = discriminator(step.inputs), discriminator(fake.detach())
    zeros, ones = torch.zeros_like(step.targets), torch.ones_like(step.targets)
    losses = cross_entropy(real_scores.float(), ones) + cross_entropy(fake_scores.float(), zeros)
    step.update(step.mean(losses), step.optimizer["discriminator"])
    with step.autocast():
        fooled = discriminator(fake)
    loss = step.mean(cross_entropy(fooled.float(), ones))
    step.update(loss, step.optimizer["generator"])
    return loss


def into_nothing(step: Step) -> Tensor:
    step.update(step.mean(step.model(step.inputs).sum(1)) * (float("nan") if step.number == 3 else 1))
    return torch.zeros(())


def of_each_sample(step: Step) -> Tensor:
    return cross_entropy(step.model(step.inputs), step.targets)


def gan_optimizers(model: Any) -> dict[str, torch.optim.Optimizer]:
    return {name: torch.optim.Adam(model[name].parameters(), lr=0.01) for name in ("generator", "discriminator")}


# Models


class WithHead(nn.Module):
    """Has a head that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = perceptron(), nn.Linear(4, 2)

    def forward(self, points: Tensor) -> Tensor:
        return self.body(points)


class Recording(nn.Linear):
    """Notes in which mode it is used."""

    def forward(self, points: Tensor) -> Tensor:
        with Path("modes").open("a") as file:
            file.write("T" if self.training else "E")
        return super().forward(points)


class Dropout(nn.Dropout):
    """Notes in a file of each process what it drops in training."""

    def forward(self, hidden: Tensor) -> Tensor:
        kept = super().forward(hidden)
        if self.training:
            with Path(f"dropped-{torchrun_role().rank}").open("a") as file:
                file.write(f"{(kept == 0).tolist()}\n")
        return kept


class Perplexity:
    """A metric of the whole split that is neither a mean over samples nor one over processes."""

    def reset(self) -> None:
        self.sums = torch.zeros(2, dtype=torch.float64)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.sums += torch.stack([cross_entropy(outputs, targets).sum(), torch.tensor(len(targets))])

    def compute(self) -> Tensor:
        return (self.sums[0] / self.sums[1]).exp()


def whole_split_metrics() -> dict[str, Any]:
    from torchmetrics import AUROC, AveragePrecision, F1Score

    kind = {"task": "multiclass", "num_classes": 2}
    return {
        "f1": F1Score(**kind, average="macro"),
        "auc": AUROC(**kind),
        "mean_average_precision": AveragePrecision(**kind),
        "perplexity": Perplexity(),
        "accuracy": lambda outputs, targets: (outputs.argmax(1) == targets).float(),
    }


TASKS = {
    "plain": plain,
    "optimizers": lambda config: plain(
        config, optimizer=two_optimizers, schedule=halved_each_ten, sampler=half_of_the_samples
    ),
    "ahead": lambda config: plain(
        config,
        schedule=lambda step: noted(f"step {step}", 1.0),
        sampler=lambda epoch: noted(f"epoch {epoch}", range(SAMPLES)),
    ),
    "groups": lambda config: plain(config, parameter_groups=groups),
    "collate": lambda config: plain(config, model=Bag(), data=Texts, collate=padded),
    "stream": lambda config: plain(config, data=Stream),
    "sized": lambda config: plain(config, data=Sized),
    "batches": lambda config: plain(config, data=Batches),
    "collated-batches": lambda config: plain(config, data=Batches, collate=list),
    "batches-without-tensors": lambda config: plain(config, data=WithoutTensors),
    "indexed-batches": lambda config: plain(config, data=Indexed),
    "forgetful": lambda config: plain(config, data=Forgetful),
    "empty": lambda config: plain(config, data=Empty),
    "unvalidated": lambda config: plain(config, data=Unvalidated),
    "complicated": lambda config: plain(config, data=Complicated),
    "lambda": lambda config: plain(config, data=Scaled),
    "gan": lambda config: plain(config, model=Gan(), step=adversarial, optimizer=gan_optimizers),
    "nan-step": lambda config: plain(config, step=into_nothing),
    "losses-step": lambda config: plain(config, step=of_each_sample),
    "head": lambda config: plain(config, model=WithHead()),
    "head-found": lambda config: plain(config, model=WithHead(), find_unused_parameters=True),
    "fewer": lambda config: plain(config, data=Fewer),
    "unsorted": lambda config: plain(config, data=Unsorted),
    "restless": lambda config: plain(config, data=Restless),
    "unwrapped": unwrapped,
    "wrapped": lambda config: plain(config, step=lambda step: updated(step, step.model)),
    "faulty": lambda config: plain(config, model=Faulty(4, 2)),
    "without-update": lambda config: plain(config, step=without_update),
    "broadcast": lambda config: plain(config, model=nn.Linear(4, 1), loss=joined),
    "broadcast-by-torch": lambda config: plain(config, model=nn.Linear(4, 1), loss=joined_by_torch),
    "metrics": lambda config: plain(config, metrics=whole_split_metrics()),
    "late-sampler": lambda config: plain(config, sampler=lambda epoch: range(SAMPLES if epoch < 2 else 10)),
    "random-sampler": lambda config: plain(config, sampler=lambda epoch: torch.randperm(SAMPLES)),
    "one-optimizer": lambda config: plain(config, optimizer=lambda model: torch.optim.Adam(model[0].parameters())),
    "dropout": lambda config: plain(config, model=nn.Sequential(nn.Linear(4, 8), Dropout(), nn.Linear(8, 2))),
    "evaluating": lambda config: plain(config, model=Recording(4, 2).eval()),  # as libraries return them,
}
