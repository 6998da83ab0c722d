"""What NCCL logs at its start says how processes are connected, and what they lack.

recorded/nccl/sockets.log is of NCCL 2.28.9 between two processes on an H200, shortened. infiniband.log was written by
hand in the format of NCCL's source, with each kind of connection that it can name.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kubetrain_trainer.processes.nccl_transport import describe_transport, read_transport, shortfalls, version_conflict

RECORDED = Path(__file__).parent / "recorded" / "nccl"
SOCKETS, INFINIBAND = (read_transport((RECORDED / f"{name}.log").read_text()) for name in ("sockets", "infiniband"))
ASKED = {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"}


def test_sockets_are_described_with_their_interface() -> None:
    assert describe_transport([SOCKETS]) == "NCCL 2.28.9+cuda13.0 (between pods NET/Socket over lo; 2 channels)"


def test_infiniband_and_the_connections_within_a_pod_are_described() -> None:
    assert describe_transport([INFINIBAND]) == (
        "NCCL 2.28.9+cuda13.0 (between pods NET/IB with GPUDirect RDMA over mlx5_0:1/IB, mlx5_1:1/IB; "
        "within a pod P2P/CUMEM, P2P/IPC, SHM/direct over NVLink; 16 channels)"
    )


def test_a_plugin_is_described_by_its_own_name() -> None:
    log = (
        "n:1:1 [0] NCCL INFO NCCL version 2.27.5+cuda12.9\n"
        "n:1:1 [0] NCCL INFO Using network Libfabric\n"
        "n:1:1 [0] NCCL INFO Channel 03/0 : 3[3] -> 14[6] [send] via NET/Libfabric/3/GDRDMA\n"
    )
    assert describe_transport([read_transport(log)]) == (
        "NCCL 2.27.5+cuda12.9 (between pods NET/Libfabric with GPUDirect RDMA)"
    )


def test_a_connection_through_another_process_of_the_pod_may_be_direct_too() -> None:
    line = "n:1:1 [0] NCCL INFO Channel 01/0 : 3[3] -> 8[0] [send] via NET/IB/1(1)/GDRDMA(PCI)/Shared\n"
    assert read_transport(line).has_gpu_direct


def test_only_the_interfaces_of_the_network_in_use_are_described() -> None:
    log = (RECORDED / "sockets.log").read_text()
    found = "vm:1538:1538 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB lo:127.0.0.1<0>\n"
    assert read_transport(found + log).interfaces == {"lo"}


def test_all_processes_are_described_together() -> None:
    inner = replace(INFINIBAND, between_pods=frozenset(), has_gpu_direct=False, within_a_pod=frozenset({"P2P/CUMEM"}))
    outer = replace(INFINIBAND, within_a_pod=frozenset(), interfaces=frozenset({"mlx5_2:1/IB"}))
    text = describe_transport([inner, outer])
    assert "between pods NET/IB with GPUDirect RDMA over mlx5_0:1/IB, mlx5_1:1/IB, mlx5_2:1/IB" in text
    assert "within a pod P2P/CUMEM over NVLink" in text


def test_without_a_log_nothing_is_described() -> None:
    assert describe_transport([read_transport("")] * 2) == ""


@pytest.mark.parametrize("asked", [{"NCCL_NET": "IB"}, {"NCCL_IB_DISABLE": "0"}, {"NCCL_IB_HCA": "mlx5"}])
def test_sockets_instead_of_infiniband_are_reported_with_their_nodes(asked: dict[str, str]) -> None:
    (warning,) = shortfalls([("node-a", SOCKETS), ("node-b", INFINIBAND), ("node-a", SOCKETS)], asked)
    assert warning.startswith("the training uses TCP on node-a, but InfiniBand was asked for: request the device")


def test_sockets_are_fine_if_infiniband_was_not_asked_for() -> None:
    assert not [*shortfalls([("node-a", SOCKETS)], {"NCCL_IB_DISABLE": "1"})]


def test_infiniband_without_gpu_direct_is_reported() -> None:
    copying = replace(INFINIBAND, has_gpu_direct=False)
    (warning,) = shortfalls([("node-a", INFINIBAND), ("node-b", copying)], ASKED)
    assert warning.startswith("InfiniBand copies through the memory of the host on node-b: load nvidia_peermem")
    assert not [*shortfalls([("node-a", INFINIBAND)], ASKED)]


def test_different_versions_are_reported_with_their_nodes() -> None:
    assert version_conflict([("node-a", "2.28.9"), ("node-b", "2.28.9")]) == ""
    assert version_conflict([("node-a", "2.28.9"), ("node-b", "2.27.5"), ("node-b", "2.27.5")]) == (
        "the pods have different versions (NCCL 2.27.5 on node-b, NCCL 2.28.9 on node-a), between which NCCL cannot "
        "connect: give all the same image"
    )
