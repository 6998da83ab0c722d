"""Train with DistributedDataParallel.

python -m kubetrain_trainer.pytorch_ddp.launching.launch --nproc-per-node 2 \
    -m kubetrain_trainer.pytorch_ddp.train --data-dir DATA --output-dir OUTPUT
"""

from functools import partial
from itertools import tee
from typing import Any

import torch

from kubetrain_trainer.data.sample_order import derived_seed
from kubetrain_trainer.data.sampling import Batch
from kubetrain_trainer.data.stream_plan import remaining_batches
from kubetrain_trainer.loop.train import recorded_run, resume, run_steps, train_together
from kubetrain_trainer.processes.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.processes.process_role import torchrun_role
from kubetrain_trainer.processes.resources import keep_freed_memory, return_freed_memory
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.pytorch_ddp.evaluate import mean_metrics
from kubetrain_trainer.pytorch_ddp.group import join_group
from kubetrain_trainer.pytorch_ddp.loading import seed_generators
from kubetrain_trainer.pytorch_ddp.preflight import find_network, run_preflight, warn_of_versions
from kubetrain_trainer.pytorch_ddp.step import take_step
from kubetrain_trainer.pytorch_ddp.training import Training, build_training
from kubetrain_trainer.reporting.time_spent import conclude
from kubetrain_trainer.termination import report_result


def train(arguments: Arguments) -> None:
    (keep_freed_memory if arguments.config.sharding == "none" else return_freed_memory)()
    output, role = arguments.output, torchrun_role()
    on_gpu = torch.cuda.is_available()
    with Watchdog(arguments.config, role, on_gpu=on_gpu) as watchdog, join_group(arguments.config, role) as group:
        warn_of_versions(group)
        with recorded_run("pytorch", arguments, role):
            if not group.from_rank_0(output.is_finished, takes_long=True):
                group.network = find_network(group)
                group.preflight = run_preflight(arguments.config, group, watchdog)
                train_together(arguments, group, watchdog, build_training, run_epochs)
    if role.is_rank_0:
        report_result({**(output.read_result() or {}), "time": conclude(output.time_spent)})


def run_epochs(training: Training) -> None:
    config, group, loader = training.config, training.group, training.loader
    rank = group.data_role.rank
    plan = loader.plan(group.replicas, training.task.sampler)
    resumed = progress, _ = resume(training, plan)
    # One batch per remaining step, with this process's samples of the step's `global_size`.
    batches, ahead = tee(remaining_batches(plan, config, progress, rank))
    steps = zip(loader.load(batch.keys for batch in ahead), batches, strict=True)

    def take(loaded: tuple[Any, ...], batch: Batch, step: int, factor: float) -> bool:
        # Seed dropout at each step, so that a resumed run draws the same random numbers.
        seed_generators(derived_seed(config.seed, step - 1, rank), group.device)
        inputs, targets, _ = loaded
        return take_step(training, inputs, targets, batch, step, factor)

    run_steps(training, plan, resumed, steps, take, partial(mean_metrics, training))


if __name__ == "__main__":
    run(lambda: train(training_arguments("Train with PyTorch DistributedDataParallel.")))
