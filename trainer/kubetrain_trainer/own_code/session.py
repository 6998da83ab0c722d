"""Functions by which a script of your own saves, resumes, reports and stops as kubetrain's trainers do.

    from kubetrain_trainer.own_code import session

    checkpoint = session.resume()
    if checkpoint:
        model.load_state_dict(torch.load(checkpoint.path / "model.pt"))
    for step in range(checkpoint.step if checkpoint else 0, STEPS):
        loss = train_step()
        session.log(step + 1, loss=loss)
        if session.should_stop() or (step + 1) % 100 == 0:
            session.save(step + 1, lambda folder: torch.save(model.state_dict(), folder / "model.pt"))
    session.finish(lambda folder: torch.save(model.state_dict(), folder / "model.pt"), {"accuracy": accuracy})

Every process calls these functions, in the same order; only the one of rank 0 writes. Call them after
init_process_group(), or session.use(strategy). Without kubetrain, they only print the progress.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from kubetrain_trainer.failures import AT_THE_START
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress, open_checkpoint, remove_partial
from kubetrain_trainer.output.checkpoint_writer import remove_superseded
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.own_code.own_output import (
    numbers,
    proof_of_end,
    read_own_metrics,
    record_end,
    saving,
    whole_number,
    write_own_metrics,
)
from kubetrain_trainer.own_code.session_peers import Peers, peers_of
from kubetrain_trainer.processes.process_role import own_role
from kubetrain_trainer.reporting.event_file import EventFile
from kubetrain_trainer.reporting.metrics_log import MetricsLog
from kubetrain_trainer.reporting.metrics_page import MetricsPage, serve_metrics
from kubetrain_trainer.reporting.mlflow_log import log_to_mlflow
from kubetrain_trainer.reporting.progress_line import format_progress
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import EXIT_CODE, exit_on_sigterm, mark_as_saving_until_exit
from kubetrain_trainer.termination import end_process, report_result

NEEDED = ("KUBETRAIN_OUTPUT", "KUBETRAIN_CONFIG")
Write = Callable[[Path], object]
"""A function that writes files into a folder."""
NO_METRICS: Mapping[str, float] = {}


def where() -> str:
    """Return how far the script has come, for the note on an error."""
    has_begun = _session.cache_info().currsize and _session().reached is not None
    return f"after step {_session().reached}" if has_begun else AT_THE_START


def use(strategy: Any) -> None:
    """Name the tf.distribute strategy, by which the processes of TensorFlow agree."""
    exit_on_sigterm()  # again, because a strategy of several processes replaces the handler with one that does nothing
    _session().strategy = strategy


def resume() -> Checkpoint | None:
    """Return the newest intact checkpoint, the same in every process, or None at the beginning of a training.

    Its `path` is the folder that save() has written, its `step` the number that save() got.
    """
    checkpoint = _session().resume()
    _session().reached = checkpoint.step if checkpoint else None
    return checkpoint


def log(step: Any, **values: Any) -> None:
    """Report numbers of a step: in the log, metrics.jsonl, TensorBoard, MLflow and on the page of metrics."""
    _session().log(whole_number(step), numbers(values))
    _session().reached = whole_number(step)


def should_stop() -> bool:
    """Return True in every process if any of them was asked to end. Call it after each step, then save()."""
    return _session().should_stop()


def save(step: Any, write: Write, metrics: Mapping[str, Any] = NO_METRICS, *, collective: bool = False) -> None:
    """Write a checkpoint, which is complete or does not exist. If the training has to stop, do not return.

    If collective, every process calls write, with one folder of the shared storage: for a library that saves by all
    processes together, such as torch.distributed.checkpoint.
    """
    _session().save(whole_number(step), write, numbers(metrics), collective)
    _session().reached = whole_number(step)


def finish(
    write_export: Write | None = None, metrics: Mapping[str, Any] = NO_METRICS, *, collective: bool = False
) -> None:
    """Write the model, with the metrics that the gate reads, and record that the training is complete.

    If collective, every process calls write_export, as in save(). Without write_export, only the metrics are written:
    the model is what the script has written into $KUBETRAIN_OUTPUT/export, or what train.outputs names.
    """
    _session().finish(write_export, numbers(metrics), collective)


@functools.lru_cache(maxsize=None)
def _session() -> Session | WithoutKubetrain:
    is_training = all(os.environ.get(name) for name in NEEDED) and "KUBETRAIN_MODEL" not in os.environ
    if is_training:
        output, config = (os.environ[name] for name in NEEDED)
        # The processes that load data would inherit the handler, and survive SIGTERM.
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
        return Session(TrainingOutput(Path(output)), TrainConfig.from_dict(json.loads(config)))
    print("this script runs without kubetrain's training: nothing is saved", flush=True)
    return WithoutKubetrain()


class Session:
    def __init__(self, output: TrainingOutput, config: TrainConfig) -> None:
        self.strategy: Any = None
        self.reached: int | None = None
        """Last step that was logged, saved or resumed; None: the script has reached none."""
        self._output = output
        self._config = config
        self._role = own_role()
        self._step = 0
        self._last: Checkpoint | None = None
        """What this attempt saved or resumed last. Later checkpoints are damaged, or of an attempt before."""
        self._report: Report | None = None
        self._is_stopping = False

    @functools.cached_property
    def _peers(self) -> Peers:
        return peers_of(self._role, self.strategy)

    def resume(self) -> Checkpoint | None:
        path = self._peers.from_rank_0(self._find_checkpoint)
        if path is None:
            return None
        output_store.fetch(Path(path))
        checkpoint = open_checkpoint(Path(path))
        print(f"rank {self._role.rank} resumes from {checkpoint.path}", flush=True)
        self._step = checkpoint.step
        self._last = checkpoint if checkpoint.path.parent == self._output.checkpoints else None
        return checkpoint

    def _find_checkpoint(self) -> str | None:
        remove_partial(self._output.checkpoints)
        checkpoint = self._output.checkpoint_to_resume(self._config.resume_from)
        return str(checkpoint.path) if checkpoint else None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if not self._role.is_rank_0:
            return
        self._report_of_rank_0(step).show(step, values)

    def _report_of_rank_0(self, step: int) -> Report:
        if self._report is None:
            resumed_step = self._step or step - 1  # a script may resume without resume()
            self._report = Report(self._output, self._config, self._role.world_size, resumed_step)
        return self._report

    def should_stop(self) -> bool:
        self._is_stopping = self._is_stopping or self._peers.must_stop()
        return self._is_stopping

    def save(self, step: int, write: Write, metrics: Mapping[str, float], collective: bool) -> None:
        """Save while the other processes wait, because they could take long storage for a lost process."""
        if self._is_stopping:
            mark_as_saving_until_exit()
        result = self._write_by_rank_0(lambda write_it: self._write(step, write_it, metrics), write, collective)
        if self._is_stopping:
            report_result(result)
            end_process(EXIT_CODE)

    def _write(self, step: int, write: Write, metrics: Mapping[str, float]) -> dict[str, Any]:
        details = {"world_size": self._role.world_size, "metrics": dict(metrics)}
        began = time.perf_counter()
        with saving():
            saved = self._last = self._output.write_checkpoint(TrainingProgress(step=step), details, write)
            remove_superseded(saved, self._config)
        if not self._is_stopping:  # nothing will read it, and a report that only begins now would have to be ended
            self._report_of_rank_0(step).show_checkpoint(metrics, time.perf_counter() - began)
        print(f"saved {saved.name}", flush=True)
        return self._output.stopped_result(saved)

    def _write_by_rank_0(self, act: Callable[[Write], Any], write: Write, collective: bool) -> Any:
        """Let rank 0 act with the write that it is to call, while the others wait, or write too if collective."""
        if collective and not self._role.is_rank_0:
            with saving():
                self._write_together(write, None)
        write_of_rank_0 = functools.partial(self._write_together, write) if collective else write
        return self._peers.from_rank_0(lambda: act(write_of_rank_0))

    def _write_together(self, write: Write, folder_of_rank_0: Path | None) -> None:
        """Write this process's files into rank 0's folder, and wait until every process has done so."""
        if folder_of_rank_0:
            output_store.begin_parts(folder_of_rank_0)
        folder = Path(self._peers.from_rank_0(lambda: str(folder_of_rank_0)))
        folder.mkdir(parents=True, exist_ok=True)  # on a disk of its own
        write(folder)
        self._peers.wait()
        if self._role.local_rank == 0 and not self._role.is_rank_0:
            output_store.put_part(folder)
        self._peers.wait()

    def finish(self, write_export: Write | None, metrics: Mapping[str, float], collective: bool) -> None:
        if self._is_stopping:
            print(
                "stopped before the end without session.save(): this run resumes from its last checkpoint", flush=True
            )
            end_process(EXIT_CODE)
        if write_export:
            self._write_by_rank_0(lambda write_it: self._export(write_it, metrics), write_export, collective)
        else:
            self._peers.from_rank_0(lambda: write_own_metrics(self._output, metrics))
        self._peers.leave()

    def _export(self, write_export: Write, metrics: Mapping[str, float]) -> None:
        metrics = {**read_own_metrics(self._output), **metrics}
        with saving():
            last = self._last or proof_of_end(self._output, self._role.world_size, metrics)
            self._output.write_export(last, {}, write_export)
            record_end(self._output, last, metrics)


class Report:
    """Rank 0's measurements."""

    def __init__(self, output: TrainingOutput, config: TrainConfig, world_size: int, resumed_step: int) -> None:
        self._events = EventFile(output.tensorboard, resumed_step)
        self._metrics = MetricsLog(output.metrics, resumed_step)
        self._page = MetricsPage(output.path.name, world_size, self._events.restarts)
        self._newest: dict[str, float] = {}
        log_to_mlflow(config, output)
        if config.metrics_port:
            serve_metrics(config.metrics_port, self._page.text)

    def show(self, step: int, values: Mapping[str, float]) -> None:
        row = {"step": step, **values}
        self._metrics.append(row)
        self._events.append(row)
        self._newest.update(row)  # a script may log the training and the validation apart
        self._page.show_steps(self._newest)
        self._page.show_logged(self._newest)
        print(format_progress(**row), flush=True)

    def show_checkpoint(self, metrics: Mapping[str, float], stall_seconds: float) -> None:
        self._page.show_checkpoint(metrics, stall_seconds)


class WithoutKubetrain:
    strategy: Any = None
    reached: int | None = None

    def resume(self) -> None:
        return None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        print(format_progress(step=step, **values), flush=True)

    def should_stop(self) -> bool:
        return False

    def save(self, *_: object) -> None:
        pass

    def finish(self, *_: object) -> None:
        pass
