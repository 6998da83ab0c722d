"""Real processes measure the links between them and their devices; a link and a device are slowed for real."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.preflight import is_due, is_product, multiply, small_integers
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message
from support.process_groups import elastic_workers, start_python, torchrun_variables

TRAIN = (
    *("-m", "kubetrain_trainer.pytorch_ddp.train", "--data", "synthetic", "--synthetic", '{"samples": 64}'),
    *("--batch-size", 8, "--max-steps", 1, "--metrics-port", 0, "--preflight", "true"),
    *("--data-dir", ".", "--output-dir", "output"),
)
# All traffic passes the loopback interface, which is slow for the address where the first pod accepts the others.
PODS_WITH_A_SLOW_ONE = """
set -e
ip link set lo up
tc qdisc add dev lo root handle 1: htb default 10
tc class add dev lo parent 1: classid 1:10 htb rate 100gbit
tc class add dev lo parent 1: classid 1:20 htb rate 2gbit
for pod in 0 1 2; do
    ip link add pod$pod type bridge
    ip link set pod$pod addrgenmode none  # else gloo would take an IPv6 address
    ip addr add 10.9.0.1$pod/32 dev pod$pod
    ip link set pod$pod up
done
tc filter add dev lo parent 1: protocol ip u32 match ip dst 10.9.0.10/32 flowid 1:20
tc filter add dev lo parent 1: protocol ip u32 match ip src 10.9.0.10/32 flowid 1:20
for pod in 1 2; do
    RANK=$pod NODE_NAME=node-$pod GLOO_SOCKET_IFNAME=pod$pod "$@" >/dev/null &
done
RANK=0 NODE_NAME=node-0 GLOO_SOCKET_IFNAME=pod0 "$@"
wait
"""
# While this process multiplies, others with a higher priority take most of its only CPU.
STARVED = """
import os, subprocess
from kubetrain_trainer.processes.entry_point import run, training_arguments
from kubetrain_trainer.pytorch_ddp import preflight
from kubetrain_trainer.pytorch_ddp.train import train

multiply = preflight.multiply

def multiply_among_others(device):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    others = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(2)]
    os.setpriority(os.PRIO_PROCESS, 0, 10)
    try:
        return multiply(device)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        for each in others:
            each.kill()

preflight.multiply = multiply_among_others
run(lambda: train(training_arguments("")))
"""
WRONG = """
import os
from kubetrain_trainer.processes.entry_point import run, training_arguments
from kubetrain_trainer.pytorch_ddp import preflight
from kubetrain_trainer.pytorch_ddp.train import train

preflight.multiply = lambda device: (0.001, os.environ["NODE_NAME"] != "node-1")
run(lambda: train(training_arguments("")))
"""
HANGING = """
import time
from kubetrain_trainer.processes.entry_point import run, training_arguments
from kubetrain_trainer.pytorch_ddp import preflight
from kubetrain_trainer.pytorch_ddp.train import train
preflight.exchange = lambda *_: time.sleep(60)
run(lambda: train(training_arguments("")))
"""


def start(folder: Path, rank: int, port: int, *command: object) -> "subprocess.Popen[str]":
    """Start one of two pods with a process each."""
    group = torchrun_variables([port], rank) | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return start_python(*(command or TRAIN), cwd=folder, **group, **of_node(folder, rank))


def of_node(folder: Path, number: int) -> dict[str, str]:
    """Return the variables by which a pod knows its node and its termination message."""
    (folder / f"termination-{number}").touch()
    return {"NODE_NAME": f"node-{number}", LOG_VARIABLE: str(folder / f"termination-{number}")}


def reported(folder: Path, number: int) -> dict[str, Any]:
    return parse_termination_message((folder / f"termination-{number}").read_text())


@pytest.mark.slow
def test_two_pods_measure_their_link_and_train(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    rank_0, other = (start(tmp_path, rank, port) for rank in range(2))
    printed = rank_0.communicate(timeout=170)[0]
    assert (rank_0.returncode, other.wait(60)) == (0, 0), printed
    found = re.search(r"preflight: (2 devices, 1 link between nodes at \S+ GB/s, in (\S+) s.*)\n", printed)
    assert found, printed
    assert float(found[2]) < 20
    result = TrainingOutput(tmp_path / "output").read_result() or {}
    assert result["preflight"] == found[1]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_links_of_a_slow_network_are_named(tmp_path: Path) -> None:
    pods = ("unshare", "--net", "sh", "-c", PODS_WITH_A_SLOW_ONE, "sh")
    group = {"MASTER_ADDR": "10.9.0.10", "MASTER_PORT": "23456", "WORLD_SIZE": "3"}
    process = start_python(*TRAIN, cwd=tmp_path, prefix=pods, **group, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    printed = process.communicate(timeout=170)[0]
    assert process.returncode == 0, printed
    slow = re.findall(r"slow link: (.*) carries", printed)
    assert sorted(slow) == ["rank 0 on node-0 to rank 1 on node-1", "rank 0 on node-0 to rank 2 on node-2"], printed


@pytest.mark.thorough
@pytest.mark.slow
def test_a_device_that_others_use_too_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    rank_0 = start(tmp_path, 0, port)
    other = start(tmp_path, 1, port, "-c", STARVED, *TRAIN[2:])
    printed = rank_0.communicate(timeout=170)[0]
    assert other.wait(60) == 0, printed
    assert "slow device: rank 1 on node-1 takes " in printed, printed
    assert "slow device: rank 0" not in printed


@pytest.mark.slow
def test_a_training_ends_before_its_first_step_to_avoid_a_slow_node(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    rank_0 = start(tmp_path, 0, port, *TRAIN, "--preflight", "avoid")
    other = start(tmp_path, 1, port, "-c", STARVED, *TRAIN[2:], "--preflight", "avoid")
    printed = rank_0.communicate(timeout=170)[0]
    assert (rank_0.returncode, other.wait(60)) == (1, 1), printed
    assert "slow device: rank 1 on node-1 takes " in printed, printed
    assert "training starts" not in printed
    one, another = (reported(tmp_path, pod) for pod in range(2))
    assert one == another
    assert one["error"].startswith("bad nodes found before the first step: node-1 (slow device: rank 1 on node-1 takes")
    assert (one["curable"], one["avoid_nodes"]) == (False, ["node-1"])


@pytest.mark.slow
def test_the_pods_of_an_elastic_job_do_not_restart_on_a_bad_node(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    settings = {"data": "synthetic", "preflight": "avoid"}
    command, both = elastic_workers(tmp_path, tmp_path / "output", **settings)
    program = command.index("-m", 2)
    arguments = [*command[1:program], "wrong.py", *command[program + 2 :]]
    pods = [start_python(*arguments, cwd=tmp_path, **both[pod], **of_node(tmp_path, pod)) for pod in range(2)]
    try:
        printed = [pod.communicate(timeout=170)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.terminate()
    assert [pod.returncode for pod in pods] == [1, 1], printed
    assert [text.count("error: bad nodes") for text in printed] == [1, 1], printed
    assert [reported(tmp_path, pod)["avoid_nodes"] for pod in range(2)] == [["node-1"], ["node-1"]]


@pytest.mark.slow
def test_a_process_that_hangs_in_it_is_ended_by_the_watchdog(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    other = start(tmp_path, 0, port)
    hanging = start(tmp_path, 1, port, "-c", HANGING, *TRAIN[2:], "--nccl-timeout-seconds", 3)
    printed = hanging.communicate(timeout=170)[0]
    assert "error: rank 1 hangs: the preflight did not end within 3 s (train.nccl_timeout_seconds)" in printed, printed
    assert hanging.returncode == 134
    assert other.wait(60) == 1


def test_it_is_due_if_several_pods_with_gpus_train() -> None:
    def due(device: str, pods: int, preflight: str = "auto") -> bool:
        group = Group(ProcessRole(world_size=8 * pods, local_world_size=8), torch.device(device))
        return is_due(TrainConfig(preflight=preflight), group)

    assert due("cuda", pods=2)
    assert not due("cuda", pods=1)
    assert not due("cpu", pods=2)
    assert due("cpu", pods=1, preflight="true")
    assert not due("cuda", pods=2, preflight="false")


def test_a_wrong_element_of_a_product_is_noticed() -> None:
    seconds, is_exact = multiply(torch.device("cpu"))
    assert seconds > 0
    assert is_exact
    random = torch.Generator("cpu").manual_seed(1)
    one, another = (small_integers(random) for _ in range(2))
    product = one @ another
    product[17, 5] += 1
    assert not is_product(product, one, another)
