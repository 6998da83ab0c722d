"""The CPUs that a process may use, and their features."""

from pathlib import Path

import pytest

from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.processes.resources import has_bf16, threads_of, usable_cpus


def test_a_containers_quota_limits_the_cpus(tmp_path: Path) -> None:
    everything = usable_cpus(tmp_path / "absent")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert usable_cpus(tmp_path / "cpu.max") == 1 <= everything
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cpus(tmp_path / "cpu.max") == everything


def test_cpus_are_divided_among_processes_unless_omp_num_threads_is_set() -> None:
    assert threads_of(ProcessRole(local_world_size=2), {"OMP_NUM_THREADS": "7"}) == 7
    assert threads_of(ProcessRole(), {}) == usable_cpus()
    assert threads_of(ProcessRole(local_world_size=10_000), {}) == 1


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("flags : fpu avx512_bf16 sse", True),
        ("flags : fpu amx_bf16", True),
        ("Features : fp asimd bf16 i8mm", True),
        ("flags : fpu avx512bw avx512_bf16x sse", False),
    ],
)
def test_bf16_support_is_read_from_proc_cpuinfo(facts: str, expected: bool, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(facts)
    assert has_bf16(tmp_path / "cpuinfo") is expected
    assert not has_bf16(tmp_path / "absent")
