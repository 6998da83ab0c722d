"""Check kubetrain on this machine's GPU, with nothing but PyTorch: a table, and gpu-check.json.

make gpu-check [GPU_CHECK="lifecycle throughput"]
"""

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from figures import HEADING, Figure, check_gpu, row

from kubetrain_trainer.processes.resources import usable_cpus

HERE = Path(__file__).parent
MEASUREMENTS = ("lifecycle", "hang", "throughput", "files", "transformer", "graphs", "saving", "tests")
LIMIT_SECONDS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurements", nargs="*", default=MEASUREMENTS, metavar="|".join(MEASUREMENTS))
    parser.add_argument("--miniature", action="store_true", help="try the check without a GPU: its figures say nothing")
    parser.add_argument("--json", type=Path, default=Path("gpu-check.json"), help="file for the figures")
    arguments = parser.parse_args()
    if unknown := set(arguments.measurements) - set(MEASUREMENTS):
        parser.error(f"unknown measurement {' and '.join(sorted(unknown))}: choose from {', '.join(MEASUREMENTS)}")
    check_gpu(parser, arguments)
    results = {name: measured(name, miniature=arguments.miniature) for name in arguments.measurements}
    print(f"\n{machine()}", flush=True)
    for name, (figures, is_complete) in results.items():
        print(f"\n{name}: {'complete' if is_complete else '**failed**'}\n")
        print(*([HEADING, *map(row, figures)] if figures else []), sep="\n", flush=True)
    figures_by_name = {name: [asdict(each) for each in figures] for name, (figures, _) in results.items()}
    arguments.json.write_text(json.dumps({"machine": machine(), "figures": figures_by_name}, indent=1))
    if failed := [name for name, (_, is_complete) in results.items() if not is_complete]:
        sys.exit(f"failed: {', '.join(failed)}; what they printed is above")


def measured(name: str, *, miniature: bool) -> tuple[list[Figure], bool]:
    """Return the figures of a measurement, and whether it reached its end."""
    began = time.monotonic()
    print(f"== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        program = [sys.executable, str(HERE / f"{name}.py"), "--json", str(file), *["--miniature"] * miniature]
        with subprocess.Popen(tests() if name == "tests" else program) as process:
            try:
                is_complete = process.wait(LIMIT_SECONDS) == 0
            except subprocess.TimeoutExpired:
                is_complete = False
                process.terminate()  # it ends its trainings
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        return [Figure(**each) for each in json.loads(file.read_text())] if file.exists() else [], is_complete


def tests() -> list[str]:
    """Return the command that runs the tests for a GPU, without the plugins and settings of the whole suite."""
    if not importlib.util.find_spec("pytest"):
        return [sys.executable, "-c", "print('pytest is not installed: the tests were left out')"]
    folder = HERE.parent.parent / "tests" / "gpu"
    return [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--confcutdir", str(folder), str(folder)]


def machine() -> str:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"{gpu}, {usable_cpus()} CPUs, PyTorch {torch.__version__}, Python {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


if __name__ == "__main__":
    main()
