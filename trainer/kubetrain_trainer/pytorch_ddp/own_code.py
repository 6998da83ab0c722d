"""Train with a script or command of your own.

python -m kubetrain_trainer.pytorch_ddp.launching.launch --nproc-per-node 2 \
    -m kubetrain_trainer.pytorch_ddp.own_code --data-dir DATA --output-dir OUTPUT --entry '{"script": "train.py"}'
"""

from __future__ import annotations

from kubetrain_trainer.own_code.program import train_with_own_code
from kubetrain_trainer.processes.entry_point import run, training_arguments

if __name__ == "__main__":
    run(lambda: train_with_own_code(training_arguments("Train with your own PyTorch script."), "pytorch"))
