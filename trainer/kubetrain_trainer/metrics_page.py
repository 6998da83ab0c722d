"""The training as Prometheus reads it: a page in its text format, written anew each time it is asked for."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from kubetrain_trainer.step_window import StepWindow, quantile

GAUGES = {
    "step": "Steps taken.",
    "epoch": "Passes over the training data that are complete.",
    "loss": "Mean loss of the newest steps, over all processes.",
    "learning_rate": "The rate of the newest step.",
    "samples_per_second": "Samples that all processes together trained on, per second of the newest steps.",
    "data_wait_share": "Share of the newest steps' time that the process that waited longest for data did.",
    "gpu_memory_peak_bytes": "The most that this process took of its GPU's memory.",
}
QUANTILES = (0.5, 0.9, 0.99)
Labels = Mapping[str, object]


class MetricsPage:
    """The training updates it, the server's threads read it: what they read is replaced whole, never changed."""

    def __init__(self, run_id: str, world_size: int, restarts: int) -> None:
        self._constant = [
            *_metric("run_info", "gauge", "Which run this is.", {"run_id": run_id}, 1),
            *_metric("processes", "gauge", "Processes that train together.", {}, world_size),
            *_metric("restarts_total", "counter", "Times that this run has started anew.", {}, restarts),
        ]
        self._newest: list[str] = []
        self._validation: list[str] = []
        self._stalls: tuple[float, int] = (0.0, 0)
        self._saved = time.monotonic()

    def show_steps(self, row: Mapping[str, Any], window: StepWindow) -> None:
        shown = [name for name in GAUGES if name in row]
        gauges = [line for name in shown for line in _metric(name, "gauge", GAUGES[name], {}, row[name])]
        skipped = row.get("skipped_steps", 0)
        counter = _metric("skipped_steps_total", "counter", "Steps whose loss or gradient was no number.", {}, skipped)
        self._newest = [*gauges, *counter, *_step_times(window)]

    def show_checkpoint(self, metrics: Mapping[str, float], stall_seconds: float) -> None:
        self._saved = time.monotonic()
        self._stalls = (self._stalls[0] + stall_seconds, self._stalls[1] + 1)
        self._validation = [
            _head("validation", "gauge", "The newest evaluation on the validation split."),
            *(_sample("validation", {"metric": name}, value) for name, value in metrics.items()),
        ]

    def text(self) -> str:
        return "\n".join([*self._constant, *self._newest, *self._validation, *self._checkpoints(), ""])

    def _checkpoints(self) -> Iterator[str]:
        meaning = "Since the newest checkpoint, or this process's start: what a failure would cost."
        yield from _metric("checkpoint_age_seconds", "gauge", meaning, {}, time.monotonic() - self._saved)
        seconds, count = self._stalls
        yield _head("checkpoint_stall_seconds", "summary", "For how long a checkpoint kept the training waiting.")
        yield _sample("checkpoint_stall_seconds_sum", {}, seconds)
        yield _sample("checkpoint_stall_seconds_count", {}, count)


def _step_times(window: StepWindow) -> Iterator[str]:
    yield _head("step_seconds", "summary", "From one step to the next, as this process sees it.")
    for share in QUANTILES:
        yield _sample("step_seconds", {"quantile": share}, quantile(window.step_seconds, share))
    yield _sample("step_seconds_sum", {}, window.total_seconds)
    yield _sample("step_seconds_count", {}, window.total_steps)


def _metric(name: str, kind: str, meaning: str, labels: Labels, value: float) -> tuple[str, str]:
    return _head(name, kind, meaning), _sample(name, labels, value)


def _head(name: str, kind: str, meaning: str) -> str:
    return f"# HELP kubetrain_{name} {meaning}\n# TYPE kubetrain_{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"kubetrain_{name}{{{pairs}}} {value}" if pairs else f"kubetrain_{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
