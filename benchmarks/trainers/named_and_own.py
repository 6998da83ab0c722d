"""Compare a torchvision model by name with the same model as a task of your own: seconds per step.

.venv/bin/python benchmarks/trainers/named_and_own.py [--model resnet50 --pixels 160 --batch 16 --launches 5]

All are trained in the same processes and take turns at each step, because the speed of a busy machine changes from one
second to the next. The third is your own with what DistributedDataParallel does unless told otherwise.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from launches import UNTIMED_STEPS, measured_settings, python_program, run_together

CONTESTANTS = ("by name", "your own", "with DDP's defaults")
Measured = dict[str, list[tuple[float, float]]]
"""The seconds of each step by contestant: by the clock, and of CPU time."""


def main() -> None:
    arguments = parsed()
    if arguments.measure:
        measure(arguments)
        return
    launches: list[Measured] = []
    for launch in range(arguments.launches):
        printed = run_together(python_program("pytorch", [__file__, *sys.argv[1:], "--measure"], arguments.processes))
        launches.append(json.loads(printed[0].rpartition("measured: ")[2].splitlines()[0]))
        print(f"launch {launch + 1} of {arguments.launches}", file=sys.stderr, flush=True)
    print(table(arguments, launches))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--pixels", type=int, default=160)
    parser.add_argument("--batch", type=int, default=16, help="batch size of each process")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each, after two untimed ones")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--launches", type=int, default=5, help="launches; the median counts")
    parser.add_argument("--measure", action="store_true", help="measure in this process, which torchrun has started")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> None:
    """Take the steps, and print each contestant's seconds: by the clock, and of CPU time."""
    # Imported here, because only the processes that torchrun starts need them.
    import torch

    from kubetrain_trainer.data.sampling import Batch
    from kubetrain_trainer.processes.process_role import torchrun_role
    from kubetrain_trainer.pytorch_ddp.group import join_group
    from kubetrain_trainer.pytorch_ddp.step import take_step
    from kubetrain_trainer.settings.config import TrainConfig

    asked = ("pytorch", arguments.model, arguments.pixels, arguments.batch, arguments.steps)
    config = TrainConfig.from_dict(measured_settings(*asked, arguments.processes))
    batch = Batch(epoch=0, indices=range(arguments.batch), global_size=arguments.batch * arguments.processes)
    images, labels = torch.randn(arguments.batch, 3, *[arguments.pixels] * 2), torch.arange(arguments.batch)
    with join_group(config, torchrun_role()) as group, tempfile.TemporaryDirectory() as folder:
        trainings = {name: ready(name, config, group, Path(folder)) for name in CONTESTANTS}
        seconds: Measured = {name: [] for name in CONTESTANTS}
        for step in range(1, UNTIMED_STEPS + arguments.steps + 1):
            for name in CONTESTANTS[:: -1 if step % 2 else 1]:
                began = time.perf_counter(), time.process_time()
                take_step(trainings[name], images, labels, batch, step, factor=0.1)
                seconds[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
        if group.role.is_rank_0:
            print("measured:", json.dumps({name: each[UNTIMED_STEPS:] for name, each in seconds.items()}), flush=True)


def ready(name: str, config: Any, group: Any, folder: Path) -> Any:
    """Return the training of a contestant, before its first step."""
    import torch

    from kubetrain_trainer.output.training_output import TrainingOutput
    from kubetrain_trainer.processes.entry_point import Arguments
    from kubetrain_trainer.pytorch_ddp import training
    from kubetrain_trainer.pytorch_ddp.task import build_task

    defaults = {"memory_format": torch.contiguous_format, "broadcast_buffers": True} if name == CONTESTANTS[2] else {}
    if name != CONTESTANTS[0]:
        config = replace(config, model="own_resnet:build", model_args={"name": config.model.partition(":")[2]})
    training.build_task = lambda *given: replace(build_task(*given), **defaults)
    return training.build_training(
        Arguments(config=config, data_dir=folder, output=TrainingOutput(folder), dataset_digest=""), group
    )


def table(arguments: argparse.Namespace, launches: list[Measured]) -> str:
    """Return the median seconds, and the median ratios to the same step of the model by name, with their range."""
    title = f"{arguments.model} at {arguments.pixels}, batch {arguments.batch}, {arguments.processes} processes"
    rows = [f"| {title} | seconds per step | ratio (range of launches) | ratio of CPU time |", "| - | -: | -: | -: |"]
    for name in CONTESTANTS:
        seconds = statistics.median(clock for launch in launches for clock, _ in launch[name])
        by_clock = [ratio(launch, name, kind=0) for launch in launches]
        of_cpu = statistics.median(ratio(launch, name, kind=1) for launch in launches)
        spread = f"{statistics.median(by_clock):.2f} ({min(by_clock):.2f} to {max(by_clock):.2f})"
        rows.append(f"| {name} | {seconds:.3f} | {spread} | {of_cpu:.2f} |")
    return "\n".join(rows)


def ratio(launch: Measured, name: str, kind: int) -> float:
    pairs = zip(launch[name], launch[CONTESTANTS[0]], strict=True)
    return statistics.median(own[kind] / named[kind] for own, named in pairs)


if __name__ == "__main__":
    main()
