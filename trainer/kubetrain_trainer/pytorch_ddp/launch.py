"""Run torchrun with meaningful exit codes: 143 after SIGTERM, otherwise the code of the first process that failed.

python -m kubetrain_trainer.pytorch_ddp.launch --nproc-per-node 2 -m kubetrain_trainer.pytorch_ddp.train …
"""

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kubetrain_trainer import saving_marks
from kubetrain_trainer.cpus import cpus_each
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.stop_signal import exit_on_sigterm
from kubetrain_trainer.termination import clear_termination_message, end_process, report_failure

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SHUTDOWN_TIMEOUT_SECONDS = 3600
"""The time that processes get to save. The pod's grace period ends earlier."""


def launch(arguments: Sequence[str]) -> int:
    """Run the processes of this pod until they exit and return one exit code for all of them."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost store would print pages of stack addresses
    from torch.distributed import DistNetworkError, launcher
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import determine_local_world_size, parse_args, run

    from kubetrain_trainer.pytorch_ddp import etcd_server, late_pod, nccl_log
    from kubetrain_trainer.pytorch_ddp.patient_agent import PatientAgent

    def stop(number: int, _: object) -> None:
        for each in STOPPING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # after a second signal torchrun would not wait for its processes
        raise SignalException("stopped by a signal", sigval=signal.Signals(number))

    logging.disable(logging.ERROR)  # the line printed below replaces torchrun's long report of a failure
    parsed = parse_args(arguments)  # type: ignore[no-untyped-call]
    parsed.signals_to_handle = "SIGHUP"  # this program handles SIGTERM and SIGINT itself
    parsed.shutdown_timeout = SHUTDOWN_TIMEOUT_SECONDS
    agent: type[PatientAgent] = PatientAgent
    lost: tuple[type[Exception], ...] = (RendezvousError, DistNetworkError)
    if late_pod.is_late(parsed.training_script_args):
        print("the training is complete: this pod only reports its result", flush=True)
        late_pod.run_alone(parsed)
    if has_etcd := parsed.rdzv_backend == etcd_server.BACKEND:
        from kubetrain_trainer.pytorch_ddp.etcd_agent import EtcdAgent, EtcdException  # loads the client of etcd

        agent, lost = EtcdAgent, (*lost, EtcdException)
    launcher.api.LocalElasticAgent = agent  # type: ignore[attr-defined]
    # By default, torchrun gives each of several processes one thread.
    os.environ.setdefault("OMP_NUM_THREADS", str(cpus_each(determine_local_world_size(parsed.nproc_per_node))))
    if has_etcd or parsed.rdzv_backend == "c10d":
        # With a shared store, restarted processes wait forever for the address of rank 0 if it did not restart.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for each in STOPPING_SIGNALS:
        signal.signal(each, stop)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="kubetrain-", ignore_cleanup_errors=True) as folder,
            nccl_log.WarningPrinter(Path(folder)),
        ):
            parsed.log_dir = parsed.log_dir or f"{folder}/torchrun"  # or else it leaves folders in /tmp
            os.environ[saving_marks.VARIABLE] = folder
            nccl_log.log_to_files(Path(folder))
            if has_etcd:
                etcd_server.await_etcd(parsed.rdzv_endpoint, parsed.rdzv_conf)
            run(parsed)  # type: ignore[no-untyped-call]
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        print(f"rank {rank} ended with exit code {shell_exit_code(failure.exitcode)}", flush=True)
        return shell_exit_code(failure.exitcode)
    except KubetrainError as error:
        clear_termination_message()
        report_failure(str(error), curable=error.is_curable)
        print(f"error: {error}", flush=True)
        return 1
    except lost as error:
        reason = first_line((has_etcd and error.__cause__) or error)
        print(f"this pod lost contact with the others, or never reached them: {reason}", flush=True)
        return 1
    return 0


def first_line(error: BaseException) -> str:
    """Return what the error says, or its name: torchrun raises some without a text, such as timeouts."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def shell_exit_code(exit_code: int) -> int:
    """Return the exit code as Kubernetes shows it: 128 plus the signal number if a signal killed the process."""
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    exit_on_sigterm()
    end_process(launch(sys.argv[1:]))
