"""The errors for checkpoints and weights that this run cannot use."""

from pathlib import Path

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.checkpoint_layout import Checkpoint
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig


def misfit_error(checkpoint: Checkpoint, config: TrainConfig) -> KubetrainError:
    """Return the error for a checkpoint that does not fit this run's model and optimizer."""
    theirs = TrainingOutput(checkpoint.path.parents[1]).read_config()["config"]
    return KubetrainError(
        f"{checkpoint.path} holds '{theirs['model']}' trained with {theirs['optimizer']}, which does not fit this "
        f"run's '{config.model}' with {config.optimizer}: name a run with the same model, optimizer and classes, and "
        "with PyTorch the same decay_norms of train.optimizer_args, and train.layer_rate=1 in both or in neither"
    )


def other_model_error(path: Path) -> KubetrainError:
    """Return the error for exported weights that do not fit the model that was built for them."""
    return KubetrainError(
        f"the weights in {path} do not fit the model that its settings build: its code has changed since it was trained"
    )


def unlisted_error(folder: Path) -> KubetrainError:
    return KubetrainError(
        f"the description of the model in {folder} lists no weights of this trainer: publish it again"
    )


def foreign_error(path: Path) -> KubetrainError:
    """Return the error for a file that contains more than the numbers that the trainers write."""
    return KubetrainError(
        f"{path} was not written by this trainer and was not loaded: it contains more than numbers, perhaps executable "
        f"code; if this run wrote it, delete {path.parent} and start the run again"
    )
