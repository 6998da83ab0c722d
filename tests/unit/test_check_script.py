"""The script that an entry runs: a valid command must not be refused because an argument looks like its script."""

import pytest

from kubetrain_trainer.own_code.check_script import scripts_of
from kubetrain_trainer.settings.entry import Entry


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "/usr/bin/python3 -u train.py configs/bert.py",
        "python -uB -W ignore -X importtime -Wonce train.py",
        "torchrun --nproc-per-node 2 train.py --config=c.py",
        "torchrun --standalone --nproc_per_node=2 --rdzv_backend c10d --node_rank 1 -t 3 train.py",
    ],
)
def test_the_first_word_after_the_options_is_the_script(command: str) -> None:
    assert scripts_of(Entry(command=tuple(command.split()))) == ["train.py"]


@pytest.mark.parametrize(
    "command",
    [
        "python train --config=c.py",
        "python --config=c.py",
        "python tools/train configs/bert.py",
        "python -m package.train c.py",
        "python -um package.train c.py",
        "python -c pass c.py",
        "python - c.py",
        "torchrun -mx c.py",
        "torchrun --nproc-per-node 2 --module package.train c.py",
        "torchrun --standalone train c.py",
        "torchrun --no-python ./run.sh c.py",
        "torchrun --no_python ./run.sh c.py",
        "torchrun --nproc 2 train.py",
        "python -W ignore",
        "sh train.sh c.py",
    ],
)
def test_an_argument_is_not_taken_for_the_script(command: str) -> None:
    assert scripts_of(Entry(command=tuple(command.split()))) == []
