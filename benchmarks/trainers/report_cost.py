"""Measure the CPU time of a report, one of which follows every `log_every` steps, in rank 0 and in another process.

.venv/bin/python benchmarks/trainers/report_cost.py [--reports 1000]

A report exchanges the times of the processes, looks for slow ones, and writes metrics.jsonl, TensorBoard's file, the
page for Prometheus, and a line of the log. Two processes of PyTorch exchange them by gloo.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from launches import python_program, run_together

WORLD_SIZE = 2
LOG_EVERY = 10
METRICS = {"loss": 1.5, "gradient_norm": 2.5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=1000)
    parser.add_argument("--measure", action="store_true", help="measure in this process, which torchrun has started")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.reports)
        return
    command = python_program("pytorch", [__file__, *sys.argv[1:], "--measure"], processes=WORLD_SIZE)
    for line in sorted(run_together(command)[0].splitlines(), reverse=True):
        if line.startswith("measured: "):
            print(line.removeprefix("measured: "))


def measure(reports: int) -> None:
    # Imported here, because only the processes that torchrun starts need them.
    from kubetrain_trainer.data.sampling import plan_samples
    from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
    from kubetrain_trainer.output.training_output import TrainingOutput
    from kubetrain_trainer.processes.process_role import torchrun_role
    from kubetrain_trainer.pytorch_ddp.group import join_group
    from kubetrain_trainer.reporting.own_time import HostClock, OwnTime
    from kubetrain_trainer.reporting.training_report import TrainingReport
    from kubetrain_trainer.settings.config import TrainConfig

    config, role = TrainConfig(metrics_port=0), torchrun_role()
    with tempfile.TemporaryDirectory() as folder, join_group(config, role) as group:
        plan = plan_samples(1_000_000, config, WORLD_SIZE, None)
        own_time = OwnTime(HostClock())
        report = TrainingReport(config, TrainingOutput(Path(folder)), plan, group, 0, own_time)
        seconds = 0.0
        for number in range(reports):
            for _ in own_time.loading(range(LOG_EVERY)):
                own_time.end_step()
                report.window.count_step(config.batch_size)
            began = time.process_time()
            report.steps(TrainingProgress(step=LOG_EVERY * (number + 1)), METRICS, rate=0.1)
            seconds += time.process_time() - began
    name = "rank 0" if role.is_rank_0 else "another process"
    print(f"measured: {name}: {1e6 * seconds / reports:.0f} µs of CPU time per report", flush=True)


if __name__ == "__main__":
    main()
