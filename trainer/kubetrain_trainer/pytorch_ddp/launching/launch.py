"""Run torchrun with meaningful exit codes: 143 after SIGTERM, otherwise the code of the first process that failed.

python -m kubetrain_trainer.pytorch_ddp.launching.launch --nproc-per-node 2 -m kubetrain_trainer.pytorch_ddp.train …
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kubetrain_trainer.stop_signal import exit_on_sigterm
from kubetrain_trainer.termination import end_process


def launch(arguments: Sequence[str]) -> int:
    """Run the processes of this pod until they exit and return one exit code for all of them."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost store would print pages of stack addresses
    try:
        from kubetrain_trainer.pytorch_ddp.launching.torchrun import (
            run_processes,  # loads PyTorch, which reads the variable
        )
    except ImportError:
        return _run_plainly(arguments)
    return run_processes(arguments)


def _run_plainly(arguments: Sequence[str]) -> int:
    """Run torchrun as it is: PyTorch before 2.3, in an image of the user's own, lacks what our agent extends."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    try:
        main(arguments)
    except ChildFailedError as failed:
        return abs(failed.get_first_failure()[1].exitcode)
    except SignalException as stopped:
        return 128 + stopped.sigval
    return 0


if __name__ == "__main__":
    exit_on_sigterm()
    end_process(launch(sys.argv[1:]))
