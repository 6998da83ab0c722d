"""A custom task: a small transformer that reads text and predicts each next character.

From this folder:

    python make_text.py text
    kubetrain run text.yaml

Everything else (processes, data order, checkpoints, resuming, evaluation, publishing) works as for the built-in models.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from kubetrain_trainer import Task, TrainConfig

CONTEXT = 64
CHARACTERS = 128  # ASCII; other characters become question marks


def build(config: TrainConfig, data_dir: Path) -> Task:
    """Build the task that `text.yaml` names; `model.args` holds the arguments of the model."""
    return Task(
        model=TextTransformer(**config.model_args),
        data=lambda split: Windows(data_dir / split),
        loss=loss,
        metrics={"accuracy": accuracy},
    )


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of the text in a folder. The target of each is the same window shifted by one character."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.txt"))
        if not paths:
            raise FileNotFoundError(f"{folder} has no *.txt file")
        text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
        self._codes = torch.tensor(list(text.encode("ascii", "replace")))

    def __len__(self) -> int:
        return max(len(self._codes) - 1, 0) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        first = index * CONTEXT
        return self._codes[first : first + CONTEXT], self._codes[first + 1 : first + CONTEXT + 1]


class TextTransformer(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, CHARACTERS)

    def forward(self, codes: Tensor) -> Tensor:
        """Turn codes (batch, CONTEXT) into scores (batch, CONTEXT, CHARACTERS)."""
        hidden = self.characters(codes) + self.positions.weight[: codes.shape[1]]
        future = nn.Transformer.generate_square_subsequent_mask(codes.shape[1], device=codes.device)
        return self.scores(self.encoder(hidden, mask=future, is_causal=True))


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss over the characters of each sample, shape (batch,)."""
    return functional.cross_entropy(scores.transpose(1, 2), targets, reduction="none").mean(dim=1)


def accuracy(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores.argmax(dim=2) == targets).float().mean(dim=1)
