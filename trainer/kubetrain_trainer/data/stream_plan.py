"""The steps of training data that can only be read in sequence."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from kubetrain_trainer.data.sampling import Batch, SamplePlan
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.settings.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """At each step, each process takes the next samples of its own stream."""

    steps_per_epoch: int
    batch_size: int
    world_size: int
    is_endless: bool = False
    """True if epochs only divide the steps of the training."""

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    @property
    def size(self) -> int:
        return self.steps_per_epoch * self.global_batch

    def steps_from(self, start: int) -> int:
        return len(range(start, self.size, self.global_batch))

    def resumed(self, progress: TrainingProgress) -> TrainingProgress:
        """Return where to resume: at the next epoch if fewer processes have a smaller one, which is over.

        Without a length of the data, only the steps say where.
        """
        if self.is_endless:
            epoch, steps = divmod(progress.step, self.steps_per_epoch)
            return replace(progress, epoch=epoch, samples_in_epoch=steps * self.global_batch)
        if progress.samples_in_epoch >= self.size:
            return replace(progress, epoch=progress.epoch + 1, samples_in_epoch=0)
        return progress

    def epochs_done(self, epoch: int, samples_in_epoch: int) -> float:
        return epoch + samples_in_epoch / self.size

    def batches(self, epoch: int, rank: int, start: int = 0) -> Iterator[Batch]:
        """Yield a batch for each remaining step of the epoch, the same for every rank."""
        for _ in range(start, self.size, self.global_batch):
            yield Batch(epoch=epoch, indices=range(self.batch_size), global_size=self.global_batch)


Plan = SamplePlan | StreamPlan


def remaining_batches(plan: Plan, config: TrainConfig, progress: TrainingProgress, rank: int) -> Iterator[Batch]:
    """Yield one process's batches for all remaining steps of the training."""
    starts = {progress.epoch: progress.samples_in_epoch}
    epochs = (plan.batches(epoch, rank, starts.get(epoch, 0)) for epoch in range(progress.epoch, config.epochs))
    steps_left = max(config.max_steps - progress.step, 0) if config.max_steps else None
    return islice(chain.from_iterable(epochs), steps_left)


def stream_plan(size: int | None, config: TrainConfig, world_size: int) -> StreamPlan:
    """Plan an epoch of `size` samples. If their number is unknown, `epochs` divides the `max_steps` of the training.

    Raises:
        InvalidSetting: if neither says how long an epoch is.
    """
    if size is None and not config.max_steps:
        raise InvalidSetting(
            "train.max_steps must be set, because the training data has no len(), so that nothing says how long an "
            "epoch is"
        )
    if config.global_batch_size:
        raise InvalidSetting(
            "train.global_batch_size must be 0, because the training data can only be read in sequence: each process "
            "reads train.batch_size samples of its own stream at each step"
        )
    global_batch = config.global_batch(world_size)
    steps = -(-config.max_steps // config.epochs) if size is None else max(1, size // global_batch)
    return StreamPlan(
        steps_per_epoch=steps, batch_size=config.batch_size, world_size=world_size, is_endless=size is None
    )
