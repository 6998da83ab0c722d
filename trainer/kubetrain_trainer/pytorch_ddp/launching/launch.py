"""Run torchrun with meaningful exit codes: 143 after SIGTERM, otherwise the code of the first process that failed.

python -m kubetrain_trainer.pytorch_ddp.launching.launch --nproc-per-node 2 -m kubetrain_trainer.pytorch_ddp.train …
"""

import os
import sys
from collections.abc import Sequence

from kubetrain_trainer.stop_signal import exit_on_sigterm
from kubetrain_trainer.termination import end_process


def launch(arguments: Sequence[str]) -> int:
    """Run the processes of this pod until they exit and return one exit code for all of them."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a lost store would print pages of stack addresses
    from kubetrain_trainer.pytorch_ddp.launching.torchrun import (
        run_processes,  # loads PyTorch, which reads the variable
    )

    return run_processes(arguments)


if __name__ == "__main__":
    exit_on_sigterm()
    end_process(launch(sys.argv[1:]))
