"""Measure the time and the memory that `kubetrain diagnose` takes for large logs.

python benchmarks/diagnose.py [MEGABYTES]
"""

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BLOCK_BYTES = 1 << 24
FAILURE = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def progress(numbers: random.Random) -> str:
    return f"[kubetrain] step={numbers.random():.6f} loss={numbers.random():.4f} samples_per_second=4127\n"


def nccl(numbers: random.Random) -> str:
    rank, address = numbers.randrange(64), numbers.getrandbits(40)
    return (
        f"node-{rank}:{rank}:71 [{rank % 8}] NCCL INFO Channel {rank:02}/0 : {rank} -> 1 via P2P comm 0x{address:x}\n"
    )


def words(numbers: random.Random) -> str:
    """Return a line that no other one is like."""
    return "".join(numbers.choices("ghijklmnopqrstuvwxyz ", k=100)) + "\n"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "progress": progress,
    "NCCL_DEBUG=INFO": nccl,
    "no two lines alike": words,
}


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for name, line in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "worker-0.log")
            write(log, line, megabytes * 1_000_000)
            began = time.monotonic()
            done = subprocess.run([kubetrain(), "diagnose", log], check=False, capture_output=True, text=True)
            seconds = time.monotonic() - began
        assert "CUDA out of memory" in done.stdout, done.stdout + done.stderr
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
        print(f"{name}: {megabytes} MB in {seconds:.1f} s, at most {peak:.0f} MB of memory so far", flush=True)


def kubetrain() -> Path:
    return Path(sys.executable).with_name("kubetrain")


def write(log: Path, line: Callable[[random.Random], str], size: int) -> None:
    """Write different lines block by block, and the failure at the end."""
    block = "".join(lines(line)).encode()
    with log.open("wb") as file:
        for number in range(size // len(block)):
            file.write(block.translate(bytes((each + (each == 48 + number % 10)) % 256 for each in range(256))))
        file.write(FAILURE)


def lines(line: Callable[[random.Random], str]) -> Iterator[str]:
    numbers, written = random.Random(0), 0
    while written < BLOCK_BYTES:
        yield (made := line(numbers))
        written += len(made)


if __name__ == "__main__":
    main()
