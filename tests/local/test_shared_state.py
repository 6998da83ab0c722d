"""A checkpoint that only rank 0 reads."""

from pathlib import Path

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from support.process_groups import start_python, torchrun_variables

PROGRAM = """
import time
from collections import OrderedDict

import torch
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.processes.process_role import torchrun_role
from kubetrain_trainer.pytorch_ddp.group import join_group
from kubetrain_trainer.pytorch_ddp.checkpoint import shared_state

images = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
kinds = [torch.ones(2, dtype=kind) for kind in (torch.bfloat16, torch.bool, torch.int64, torch.float64)]
model = OrderedDict(images=images, transposed=torch.arange(6).reshape(2, 3).t(), empty=torch.zeros(0))
model._metadata = {"": {"version": 2}}
expected = {"model": model, "kinds": kinds, "wide": torch.ones(()).expand(3), "optimizer": {0: {"step": 7}}}

def read():
    assert role.is_rank_0, "only rank 0 reads"
    time.sleep(5)  # longer than a collective may take
    return expected

role = torchrun_role()
with join_group(TrainConfig(nccl_timeout_seconds=1), role) as group:
    state = shared_state(read, group)
torch.testing.assert_close(state, expected)
assert state["model"]["images"].is_contiguous(memory_format=torch.channels_last)
assert state["model"]._metadata == model._metadata
assert state["kinds"][0].data_ptr() != kinds[0].data_ptr(), "a file that was mapped may be deleted"
"""


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_process_has_the_state_that_rank_0_has_read(world_size: int, tmp_path: Path) -> None:
    ports = free_ports(1)
    processes = [
        start_python("-c", PROGRAM, cwd=tmp_path, **torchrun_variables(ports, rank, world_size))
        for rank in range(world_size)
    ]
    for process in processes:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
