"""torchrun in this program: its agent, its processes, and how they ended."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from torch.distributed import DistNetworkError, launcher
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import determine_local_world_size, parse_args, run

from kubetrain_trainer import stop_signal
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.resources import cpus_each
from kubetrain_trainer.processes.watchdog import HOLDS_GIL
from kubetrain_trainer.pytorch_ddp.launching import etcd_server, nccl_log
from kubetrain_trainer.pytorch_ddp.launching.patient_agent import (
    EtcdAgent,
    PatientAgent,
    is_late,
    run_alone,
    stopped_by,
)
from kubetrain_trainer.termination import clear_termination_message, report_failure

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SHUTDOWN_TIMEOUT_SECONDS = 3600
"""The time that processes get to save. The pod's grace period ends earlier."""


def run_processes(arguments: Sequence[str]) -> int:
    """Run the processes of this pod until they exit and return one exit code for all of them."""
    logging.disable(logging.ERROR)  # the line printed below replaces torchrun's long report of a failure
    parsed = _parse(arguments)
    lost = _choose_agent(parsed)
    _set_variables(parsed)
    for number in STOPPING_SIGNALS:
        signal.signal(number, _stop)
    try:
        _run(parsed)
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        return _say_who_failed(failed)
    except KubetrainError as error:
        clear_termination_message()
        report_failure(str(error), curable=error.is_curable)
        print(f"error: {error}", flush=True)
    except lost as error:
        reason = _first_line((_has_etcd(parsed) and error.__cause__) or error)
        print(f"this pod lost contact with the others, or never reached them: {reason}", flush=True)
    else:
        return 0
    return 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parsed: argparse.Namespace = parse_args(arguments)  # type: ignore[no-untyped-call]
    parsed.signals_to_handle = "SIGHUP"  # this program handles SIGTERM and SIGINT itself
    parsed.shutdown_timeout = SHUTDOWN_TIMEOUT_SECONDS
    if is_late(parsed.training_script_args):
        print("the training is complete: this pod only reports its result", flush=True)
        run_alone(parsed)
    return parsed


def _has_etcd(parsed: argparse.Namespace) -> bool:
    return bool(parsed.rdzv_backend == etcd_server.BACKEND)


def _choose_agent(parsed: argparse.Namespace) -> tuple[type[Exception], ...]:
    """Let torchrun use our agent, and return the errors by which it says that contact was lost."""
    PatientAgent.min_nodes = int(parsed.nnodes.partition(":")[0])
    agent = PatientAgent
    lost: tuple[type[Exception], ...] = (RendezvousError, DistNetworkError)
    if _has_etcd(parsed):
        from torch.distributed.elastic.rendezvous import etcd_store  # loads the client of etcd

        agent, lost = EtcdAgent, (*lost, etcd_store.etcd.EtcdException)  # type: ignore[attr-defined]
    launcher.api.LocalElasticAgent = agent  # type: ignore[attr-defined]
    return lost


def _set_variables(parsed: argparse.Namespace) -> None:
    # By default, torchrun gives each of several processes one thread.
    os.environ.setdefault("OMP_NUM_THREADS", str(cpus_each(determine_local_world_size(parsed.nproc_per_node))))
    if _has_etcd(parsed) or parsed.rdzv_backend == "c10d":
        # With a shared store, restarted processes wait forever for the address of rank 0 if it did not restart.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


def _stop(number: int, _: object) -> NoReturn:
    for ignored in STOPPING_SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)  # after a second signal torchrun would not wait for its processes
    PatientAgent.heard = signal.Signals(number)
    raise stopped_by(PatientAgent.heard)


@contextlib.contextmanager
def _scratch_folder() -> Iterator[str]:
    """Make a folder, and delete it at the end as far as processes that are still there let us."""
    folder = tempfile.mkdtemp(prefix="kubetrain-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(parsed: argparse.Namespace) -> None:
    with _scratch_folder() as folder, nccl_log.WarningPrinter(Path(folder)):
        parsed.log_dir = parsed.log_dir or f"{folder}/torchrun"  # or else it leaves folders in /tmp
        os.environ[stop_signal.MARKS_VARIABLE] = folder
        nccl_log.log_to_files(Path(folder))
        if _has_etcd(parsed):
            etcd_server.await_etcd(parsed.rdzv_endpoint, parsed.rdzv_conf)
        run(parsed)  # type: ignore[no-untyped-call]


def _say_who_failed(failed: ChildFailedError) -> int:
    rank, failure = failed.get_first_failure()
    exit_code = _shell_exit_code(failure.exitcode)
    if failure.exitcode == -signal.SIGALRM:
        report_failure(f"rank {rank} {HOLDS_GIL}", curable=True)
        print(f"error: rank {rank} {HOLDS_GIL}", flush=True)
    print(f"rank {rank} ended with exit code {exit_code}", flush=True)
    return exit_code


def _first_line(error: BaseException) -> str:
    """Return what the error says, or its name: torchrun raises some without a text, such as timeouts."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _shell_exit_code(exit_code: int) -> int:
    """Return the exit code as Kubernetes shows it: 128 plus the signal number if a signal killed the process."""
    return exit_code if exit_code >= 0 else 128 - exit_code
