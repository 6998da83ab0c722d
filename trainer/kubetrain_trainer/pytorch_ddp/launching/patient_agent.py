"""torchrun's agent of a pod, which does not kill processes that are saving, nor restart those that cannot succeed.

If processes join or fail, torchrun's own agent kills those of this pod 30 seconds after SIGTERM, and writing a large
checkpoint takes longer. In an elastic job it also restarts them after an error that no restart can cure. In any other
job it learns nothing of other pods.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import AFTER_THE_END, IN_VAIN, LOST_ANOTHER, TransientFailure
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.pytorch_ddp.launching.other_pods import OtherPods, meet_anew
from kubetrain_trainer.stop_signal import MARKS_VARIABLE, StopSignal, is_saving
from kubetrain_trainer.termination import is_incurable, read_termination_message, report_incurable, report_result

TIMEOUT_SECONDS = 30.0
"""For a process that is not saving. If it has lost its peers, it may hang in a library and never see SIGTERM."""
OWN_LOOP = "kubetrain_trainer.pytorch_ddp.train"
SAVING_TIMEOUT_SECONDS = 3600.0
POLL_SECONDS = 0.1
END_SECONDS = 1.0
"""Time in which agents notice that their processes have ended, if those of an elastic job end at once."""
ENDED_KEY = "torchelastic/agent/terminal_state/num_members"
"""The key under which torchrun counts the agents whose processes have ended: these agents start no others."""
NOTICE_SECONDS = 5.0
"""Time in which processes may notice by themselves, and say where, that others have failed."""


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...


class PatientAgent(LocalElasticAgent):
    heard: signal.Signals | None = None
    """The signal that has asked this pod to stop. A finalizer, or a library, may have lost what its handler raised."""

    min_nodes = 1
    _others: OtherPods | None = None
    """None in an elastic job, whose pods may fail and join, and in a pod that trains alone."""
    _others_failed_at = 0.0

    def _rendezvous(self, worker_group: Any) -> None:
        handler = worker_group.spec.rdzv_handler
        is_static = handler.get_backend() == "static" and handler.world_size > 1
        if is_static:
            meet_anew(handler)
        super()._rendezvous(worker_group)
        self._others = OtherPods(handler, worker_group) if is_static else None

    def _monitor_workers(self, worker_group: Any) -> Any:
        if self.heard:
            raise stopped_by(self.heard)
        result = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED:
            if self._others:
                self._others.tell_failure()
            elif self._is_left_alone(worker_group):
                self._remaining_restarts = 0
                if not is_late(worker_group.spec.args):  # else the pod that starts again reports the result
                    report_incurable(IN_VAIN)
            if is_incurable(read_termination_message()):
                self._remaining_restarts = 0
        elif result.state is WorkerState.HEALTHY and self._must_follow():
            self._stop_workers(worker_group)
            raise TransientFailure(f"{LOST_ANOTHER} in another pod: look for the one that failed first")
        return result

    def _is_left_alone(self, worker_group: Any) -> bool:
        """Return True if the processes of other pods have ended, and too few pods are left for another start."""
        began, nodes, store = time.monotonic(), worker_group.group_world_size, cast("Any", self._store)
        with contextlib.suppress(Exception):  # the pod that hosts the rendezvous may be lost
            while nodes > 1 and time.monotonic() - began < END_SECONDS:
                ended = store.add(ENDED_KEY, 0)
                if ended and nodes - ended + worker_group.spec.rdzv_handler.num_nodes_waiting() < self.min_nodes:
                    return True
                time.sleep(POLL_SECONDS)
        return False

    def _must_follow(self) -> bool:
        """Return True if another pod has failed, so that the processes of this one cannot succeed."""
        if self._others is None or not self._others.have_failed:
            return False
        self._others_failed_at = self._others_failed_at or time.monotonic()
        return time.monotonic() - self._others_failed_at > NOTICE_SECONDS

    def _stop_workers(self, worker_group: Any) -> None:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        stop({ranks[local]: handler.proc for local, handler in handlers.items()}, Path(os.environ[MARKS_VARIABLE]))
        super()._stop_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Wait for the other pods, but not long after a training by kubetrain's loop, which ends in all at once."""
        arguments = self._worker_group.spec.args
        if OWN_LOOP in arguments and is_late(arguments):
            self._exit_barrier_timeout = TIMEOUT_SECONDS
        if self._others is None:
            super()._exit_barrier()  # type: ignore[no-untyped-call]
        elif not self._others.await_ends(self._exit_barrier_timeout):
            if not is_late(arguments):
                raise TransientFailure(f"{LOST_ANOTHER} {AFTER_THE_END}: look for the one that failed first")
            report_result({"status": "completed"})  # the pod that was lost needs no other one to report it

    def _shutdown(self, *arguments: Any, **options: Any) -> None:
        """Wait for the processes even after a SIGTERM, because torchrun would leave those that save."""
        with StopSignal():
            super()._shutdown(*arguments, **options)


class EtcdAgent(PatientAgent):
    """An agent that never closes a rendezvous in etcd, because others may still need it.

    It would stay closed for pods that restart after a failure, and for one that comes back when the others have ended.
    A rendezvous in the first pod ends with that pod.
    """

    def __init__(self, spec: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(spec, *arguments, **options)
        spec.rdzv_handler.shutdown = lambda: True


def stopped_by(number: signal.Signals) -> SignalException:
    return SignalException("stopped by a signal", sigval=number)


def stop(processes: Mapping[int, Process], marks: Path) -> None:
    """Send SIGTERM to the process groups, wait until the processes have ended, and kill those that take too long.

    A process that has just saved has yet to exit: the timeout begins again with the last save.
    """
    alive = {rank: process for rank, process in processes.items() if process.poll() is None}
    for process in alive.values():
        os.killpg(process.pid, signal.SIGTERM)
    began = last_save = time.monotonic()
    while alive := {rank: process for rank, process in alive.items() if process.poll() is None}:
        now = time.monotonic()
        if any(is_saving(marks, process.pid) for process in alive.values()):
            last_save = now
        if now - last_save > TIMEOUT_SECONDS or now - began > SAVING_TIMEOUT_SECONDS:
            _kill(alive, now - began)
            return
        time.sleep(POLL_SECONDS)


def _kill(alive: Mapping[int, Process], seconds: float) -> None:
    for rank, process in alive.items():
        print(f"rank {rank} did not end within {seconds:.0f} s after SIGTERM: it is killed", flush=True)
        os.killpg(process.pid, signal.SIGKILL)


def is_late(script_arguments: Sequence[str]) -> bool:
    """Return True if the output folder of these arguments of the trainer has a result: others completed the training.

    The success of a job is that of its first pod, which may come back when the others have ended.
    """
    with contextlib.suppress(KubetrainError):  # the training itself reports a file that cannot be read
        if "--output-dir" in script_arguments:
            folder = script_arguments[script_arguments.index("--output-dir") + 1]
            return TrainingOutput(Path(folder)).is_finished()
    return False


def run_alone(parsed: argparse.Namespace) -> None:
    """Change the arguments of torchrun so that one process runs, which meets no other."""
    parsed.standalone, parsed.nnodes, parsed.nproc_per_node = True, "1", "1"
    parsed.rdzv_backend, parsed.rdzv_conf = "c10d", ""
