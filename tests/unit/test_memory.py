"""The memory that a process may still use."""

from pathlib import Path

import pytest

from kubetrain_trainer.processes.resources import free_memory

MACHINE = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    {} kB\n"


@pytest.mark.parametrize(
    ("limit", "available", "free"),
    [
        ("5000000000", 9_000_000, 5_000_000_000 - 3_000_000_000 + 1_000_000_000),
        ("5000000000", 1_000_000, 1_024_000_000),
        ("max", 9_000_000, 9_216_000_000),
    ],
)
def test_the_smaller_of_what_the_container_and_the_machine_have_left(
    limit: str, available: int, free: int, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("3000000000\n")
    (tmp_path / "memory.stat").write_text("anon 2\ninactive_anon 7\ninactive_file 1000000000\nactive_file 5\n")
    (tmp_path / "meminfo").write_text(MACHINE.format(available))
    assert free_memory(tmp_path, tmp_path / "meminfo") == free


def test_what_says_nothing(tmp_path: Path) -> None:
    assert free_memory(tmp_path, tmp_path / "absent") is None


def test_this_machine() -> None:
    assert 1_000_000 < (free_memory() or 0) < 10**14
