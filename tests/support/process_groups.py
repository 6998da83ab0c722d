"""Trainer processes that find each other without a launcher."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def start(program: str, folder: Path, **environment: str) -> "subprocess.Popen[str]":
    return start_python("-c", program, folder, cwd=folder, **environment)


def start_python(
    *arguments: object, cwd: Path, prefix: Sequence[str] = (), **environment: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*prefix, sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def torchrun_variables(ports: list[int], rank: int, world_size: int = 2) -> dict[str, str]:
    first, *others = map(str, ports)
    size = str(world_size)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": first, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {**group, "RANK": str(rank), "LOCAL_RANK": str(rank), "PORTS": " ".join(others)}


def tf_config(ports: list[int], index: int) -> str:
    cluster: dict[str, Any] = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
