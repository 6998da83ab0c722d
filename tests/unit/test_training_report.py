"""Rank 0 reports during a training, and other processes do not."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.data.sampling import SamplePlan
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_group import describe_start, with_interface
from kubetrain_trainer.processes.resources import cpu_name
from kubetrain_trainer.reporting import time_spent, training_report
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.reporting.metrics_page import serve_metrics
from kubetrain_trainer.reporting.own_time import HostClock, OwnTime, StepTimes
from kubetrain_trainer.reporting.progress_line import parse_progress
from kubetrain_trainer.reporting.step_window import StepWindow
from kubetrain_trainer.reporting.time_spent import CAUSES, summarize
from kubetrain_trainer.reporting.training_report import TrainingReport
from kubetrain_trainer.settings.config import TrainConfig
from support.outside import sample, scrape, tensorboard_scalars
from support.training import FakeGroup

AT_THE_START = TrainingProgress()


@pytest.fixture(autouse=True)
def stopped_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with contextlib.ExitStack() as served:
        monkeypatch.setattr(
            training_report, "serve_metrics", lambda port, page: served.callback(serve_metrics(port, page))
        )
        yield


def begin(
    path: Path,
    rank: int = 0,
    resumed: TrainingProgress = AT_THE_START,
    gpu_memory: int = 0,
    other_waits: float = 0.0,
    seconds_at_peak: float = 0.0,
    **settings: object,
) -> TrainingReport:
    plan = SamplePlan(size=64, global_batch=16, world_size=2, seed=0)
    config = TrainConfig.from_dict({"metrics_port": 0, **settings})

    def add_the_others(values: list[float]) -> list[float]:
        """Let the other process take the same steps, and wait for its data for this part of them."""
        if len(values) != 2 * len(StepTimes()):
            return values
        own = StepTimes(*values[:4]).plus(StepTimes(*values[4:]))
        other = own._replace(data=other_waits * own.total)
        return [*own, *other] if rank == 0 else [*other, *own]

    group = FakeGroup(rank, add_the_others, gpu_memory)
    clock = Clock()
    report = TrainingReport(config, TrainingOutput(path), plan, group, resumed, OwnTime(clock), seconds_at_peak)
    report.window = StepWindow(clock)
    return report


class Clock(HostClock):
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def mark(self) -> float:
        return self.now


def train(report: TrainingReport, steps: int, waited_seconds: float) -> None:
    """Take steps of two seconds each, or longer ones if they wait longer."""
    own_time = report._own_time
    clock: Any = own_time.clock

    def batches() -> Iterator[None]:
        for _ in range(steps):
            clock.now += waited_seconds
            yield

    for _ in own_time.loading(batches()):
        clock.now += max(2 - waited_seconds, 0)
        own_time.end_step()
        report.window.count_step(16)


@pytest.mark.parametrize(
    ("step", "epoch", "samples_in_epoch", "max_steps", "expected"),
    [
        (0, 0, 0, 0, 12),
        (6, 1, 32, 0, 12),
        (5, 1, 16, 0, 12),
        (40, 1, 32, 0, 46),  # with a smaller batch
        (40, 1, 33, 0, 46),
        (2, 1, 32, 0, 8),  # with a larger batch
        (40, 1, 32, 43, 43),
        (40, 3, 0, 0, 40),
    ],
)
def test_the_last_step_is_told_from_what_is_left(
    step: int, epoch: int, samples_in_epoch: int, max_steps: int, expected: int
) -> None:
    plan = SamplePlan(size=65, global_batch=16, world_size=2, seed=0)  # the last step of an epoch has a sample more
    resumed = TrainingProgress(step=step, epoch=epoch, samples_in_epoch=samples_in_epoch)
    assert training_report.total_steps(TrainConfig(epochs=3, max_steps=max_steps), plan, resumed) == expected


def test_metrics_tensorboard_and_the_page_agree(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    report = begin(tmp_path, gpu_memory=2**30, seconds_at_peak=0.0625, metrics_port=port)
    train(report, steps=2, waited_seconds=0.5)
    report.steps(TrainingProgress(step=2, epoch=0), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.125)
    report.checkpoint(TrainingProgress(step=2, epoch=0), {"accuracy": 0.75}, stall_seconds=0.25)
    steps, checkpoint = read_metrics(tmp_path / "metrics.jsonl")
    assert steps == {
        **{"step": 2, "epoch": 0, "loss": 0.5, "gradient_norm": 2.0, "learning_rate": 0.125, "samples_per_second": 8.0},
        **{"data_wait_share": 0.25, "gpu_memory_peak_bytes": 2**30, "samples_per_second_per_gpu": 4.0, "mfu": 0.5},
        **{"idle_share": 0.125, "straggler_delay_share": 0.25},
    }
    assert checkpoint == {"step": 2, "epoch": 0, "validation_accuracy": 0.75, "checkpoint_stall_seconds": 0.25}
    scalars = {tag: values[-1] for tag, values in tensorboard_scalars(tmp_path / "tensorboard").items()}
    assert scalars == {name: (2, value) for name, value in {**steps, **checkpoint}.items() if name != "step"}
    read = scrape(port)
    assert {name: sample(read, name) for name in steps} == steps
    assert sample(read, "validation", metric="accuracy") == 0.75
    assert sample(read, "checkpoint_stall_seconds_sum") == 0.25


def test_a_line_of_progress_has_the_time_left_and_the_age_of_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = begin(tmp_path, epochs=3)
    train(report, steps=2, waited_seconds=0.5)
    report.steps(TrainingProgress(step=2), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.125)
    (progress,) = map(parse_progress, capsys.readouterr().out.splitlines())
    assert progress is not None
    assert (progress["step"], progress["seconds_left"]) == ("2/12", 20.0)
    assert 0 < float(progress["checkpoint_age_seconds"]) < 10


def test_the_page_shows_the_whole_time_by_what_it_was_spent_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_spent, "_STARTED_ON_CLOCK", time.perf_counter() - 1000)
    port = free_ports(1)[0]
    report = begin(tmp_path, metrics_port=port)
    began = time_shown(port)
    train(report, steps=2, waited_seconds=0.5)
    report.steps(TrainingProgress(step=2), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.125)
    report.checkpoint(TrainingProgress(step=2), {"accuracy": 0.75}, stall_seconds=1e-6)
    shown = time_shown(port)
    assert set(shown) == set(CAUSES) and not any(began.values())
    # Of the four seconds of two steps, the first step belongs to the start, and with it its wait for data.
    assert (shown["training"], shown["data_wait"]) == (1.5, 0.5)
    assert shown["start"] > 900
    assert sum(shown.values()) == pytest.approx(1000, abs=60)


def time_shown(port: int) -> dict[str, float]:
    read = scrape(port)
    return {cause: sample(read, "time_seconds_total", cause=cause) for cause in CAUSES}


def test_a_resumed_run_counts_its_restarts(tmp_path: Path) -> None:
    begin(tmp_path)
    port = free_ports(1)[0]
    begin(tmp_path, resumed=TrainingProgress(step=2, samples_in_epoch=32), metrics_port=port)
    assert sample(scrape(port), "restarts_total") == 1


def test_a_resumed_run_reports_the_steps_after_its_checkpoint_again(tmp_path: Path) -> None:
    def report_steps(report: TrainingReport, *steps: int) -> None:
        for step in steps:
            train(report, steps=1, waited_seconds=0.5)
            report.steps(TrainingProgress(step=step), means={"loss": 0.5, "gradient_norm": 2.0}, rate=step)

    report_steps(begin(tmp_path), 1, 2, 3)
    report_steps(begin(tmp_path, resumed=TrainingProgress(step=2)), 4)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 4]
    assert tensorboard_scalars(tmp_path / "tensorboard")["learning_rate"] == [(1, 1), (2, 2), (4, 4)]


def test_a_save_without_a_validation_and_a_stop_take_the_time_of_a_checkpoint(tmp_path: Path) -> None:
    report, progress = begin(tmp_path), TrainingProgress(step=2)
    train(report, steps=2, waited_seconds=0.5)
    report.steps(progress, means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.125)
    for number, save in enumerate([lambda: report.checkpoint(progress, {}, stall_seconds=0.0), report.stop], 1):
        time.sleep(0.02)
        save()
        spent = summarize(tmp_path / "time.json")["seconds"]
        assert spent["checkpoint"] >= number * 0.02
        assert spent["validation"] == 0


def test_a_used_port_does_not_fail_the_training(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as other:
        report = begin(tmp_path, metrics_port=other.getsockname()[1])
        train(report, steps=1, waited_seconds=0.5)
        report.steps(TrainingProgress(step=1), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.1)
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1]


def test_only_rank_0_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    report = begin(tmp_path, rank=1, metrics_port=free_ports(1)[0])
    train(report, steps=40, waited_seconds=1.5)
    report.steps(TrainingProgress(step=1), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.1)
    report.end()
    assert list(tmp_path.iterdir()) == []
    assert (capsys.readouterr().out, caplog.messages) == ("", [])


@pytest.mark.parametrize(
    ("steps", "waited_seconds", "other_waits", "while_it_trains", "at_the_end"),
    [
        (40, 1.24, 0.3, 1, 2),
        (40, 0.1, 0.62, 1, 2),  # this process waits for the other, which waits for its data
        (40, 0.5, 0.1, 0, 0),  # fast enough
        (10, 1.24, 0.3, 0, 1),  # too early to tell
        (4, 1.24, 0.3, 0, 0),  # over before it began
    ],
)
def test_a_training_that_waits_for_data_says_what_to_do(
    steps: int,
    waited_seconds: float,
    other_waits: float,
    while_it_trains: int,
    at_the_end: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    report = begin(tmp_path, other_waits=other_waits)
    train(report, steps, waited_seconds)
    report.steps(TrainingProgress(step=steps), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.1)
    report.steps(TrainingProgress(step=steps), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.1)
    warnings = [each for each in caplog.messages if "waits" in each]
    assert len(warnings) == while_it_trains
    report.end()
    warnings = [each for each in caplog.messages if "waits" in each]
    assert len(warnings) == at_the_end
    assert all("waits for data 62% of the time: " in each and "raise train.loader_workers" in each for each in warnings)


def test_a_few_long_waits_are_told_from_many_short_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    report = begin(tmp_path)
    for steps, waited_seconds in ((40, 0.0), (2, 60.0)):
        train(report, steps, waited_seconds)
        report.steps(TrainingProgress(step=steps), means={"loss": 0.5, "gradient_norm": 2.0}, rate=0.1)
    report.end()
    assert "waits for data 61% of the time" in caplog.text


def test_a_training_logs_its_hardware_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    start = {"backend": "PyTorch 2.15.0", "precision": "bf16", "device": "AMD EPYC"}
    assert describe_start(world_size=2, network=with_interface("gloo"), threads=1, **start) == (
        "training starts: PyTorch 2.15.0, 2 processes, gloo over eth0, bf16, 1 thread each, AMD EPYC"
    )
    assert describe_start(world_size=2, network=with_interface("nccl"), threads=8, **start) == (
        "training starts: PyTorch 2.15.0, 2 processes, nccl, bf16, 8 threads each, AMD EPYC"
    )
    assert describe_start(world_size=1, network="", threads=8, **start) == (
        "training starts: PyTorch 2.15.0, 1 process, bf16, 8 threads, AMD EPYC"
    )
    start["device"] = "NVIDIA H200"
    assert describe_start(world_size=16, network="", threads=8, used_gpus=8, gpus=8, **start) == (
        "training starts: PyTorch 2.15.0, 16 processes, bf16, 8 threads each, 8 of 8 GPUs in this pod, NVIDIA H200"
    )
    assert cpu_name()
