"""A decoder of 1.07 billion parameters as a task of your own, in plain PyTorch."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from kubetrain_trainer.pytorch_ddp.task import Task
from kubetrain_trainer.settings.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int = 20
    width: int = 2048
    heads: int = 16
    vocabulary: int = 32768
    context: int = 2048

    @property
    def multiplied_parameters(self) -> int:
        """Parameters that each token is multiplied with: all but the embeddings."""
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width

    @property
    def operations_per_token(self) -> int:
        """Floating-point operations of forward and backward pass, attention included as if it were not causal."""
        return 6 * self.multiplied_parameters + 12 * self.layers * self.width * self.context


def build(config: TrainConfig, data_dir: Path) -> Task:
    shape = Shape(**config.model_args)
    return Task(
        model=Decoder(shape),
        data=partial(Tokens, shape, config.synthetic_data.samples),
        loss=loss,
    )


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.scores = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.scores(self.norm(self.blocks(states)))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.before_attention, self.before_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.attended = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, states: Tensor) -> Tensor:
        states = states + self.attention(self.before_attention(states))
        return states + self.feed_forward(self.before_feed_forward(states))

    def attention(self, states: Tensor) -> Tensor:
        parts = self.projections(states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.attended(mixed.transpose(1, 2).flatten(2))


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    """Texts that count in steps of their own, from a start of their own."""

    def __init__(self, shape: Shape, samples: int, split: str) -> None:
        self._shape = shape
        self._samples = samples if split == "train" else 8

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        text = (index * 7919 + torch.arange(self._shape.context + 1) * (1 + index % 13)) % self._shape.vocabulary
        return text[:-1], text[1:]


def loss(scores: Tensor, tokens: Tensor) -> Tensor:
    losses = functional.cross_entropy(scores.flatten(0, 1), tokens.flatten(), reduction="none")
    return losses.view(tokens.shape).mean(dim=1)
