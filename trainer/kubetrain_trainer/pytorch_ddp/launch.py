"""torchrun with exit codes that tell what happened: 143 when it was stopped by SIGTERM, else the failed process's own.

python -m kubetrain_trainer.pytorch_ddp.launch --nproc-per-node 2 -m kubetrain_trainer.pytorch_ddp.train …
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from kubetrain_trainer.stop_signal import exit_on_sigterm
from kubetrain_trainer.termination import end_process

STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
MAX_STOP_SECONDS = 3600
"""So long the processes may take to save: the pod's grace period ends before."""


def launch(arguments: Sequence[str]) -> int:
    """Run the processes of this pod to their end; the exit code for all of them."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost store would fill pages with addresses
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import parse_args, run

    def stop(number: int, _: object) -> None:
        for each in STOPPING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)  # asked again, torchrun would no longer wait for its processes
        raise SignalException("asked to stop", sigval=signal.Signals(number))

    logging.disable(logging.ERROR)  # what torchrun logs of an end, in many lines, is said in one below
    parsed = parse_args(arguments)  # type: ignore[no-untyped-call]
    parsed.signals_to_handle = "SIGHUP"  # the others are handled here
    parsed.shutdown_timeout = MAX_STOP_SECONDS
    if parsed.rdzv_backend == "c10d":
        # With the store shared, processes that join later wait in vain for the address of a first one that stayed.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for each in STOPPING_SIGNALS:
        signal.signal(each, stop)
    try:
        run(parsed)  # type: ignore[no-untyped-call]
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        print(f"rank {rank} ended with exit code {in_shells_terms(failure.exitcode)}", flush=True)
        return in_shells_terms(failure.exitcode)
    except (RendezvousError, DistNetworkError) as error:
        print(f"this pod lost the others, or never found them: {str(error).splitlines()[0]}", flush=True)
        return 1
    return 0


def in_shells_terms(exit_code: int) -> int:
    """As Kubernetes counts: 128 and the signal's number for a process that a signal ended."""
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    exit_on_sigterm()
    end_process(launch(sys.argv[1:]))
