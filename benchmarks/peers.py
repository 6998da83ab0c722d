"""The commands that make each tool download everything, with the same number of requests in flight."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from dataset import BUCKET, PREFIX, SOURCE

OURS = "kubetrain sync"
TEXTBOOK = "boto3 download_file"
S5CMD = "s5cmd cp"
RCLONE = "rclone copy"

HERE = Path(__file__).parent
PYTHON = sys.executable
NEVER_A_SECRET = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark-secret"}


@dataclass(frozen=True)
class Download:
    """The work of one measured command."""

    endpoint_url: str
    target: Path
    in_flight: int
    objects: int
    bytes: int


@dataclass(frozen=True)
class Tool:
    name: str
    version: str
    """Empty if the tool is not installed."""
    command: Callable[[Download], list[str]]

    @property
    def is_installed(self) -> bool:
        return bool(self.version)


def all_tools(peers: Path) -> list[Tool]:
    """List kubetrain and then its peers, whose programs are searched in a folder, then on the PATH."""
    rclone, s5cmd, aws = (find_program(name, peers) for name in ("rclone", "s5cmd", "aws"))
    python = str(peers / "python")
    return [
        Tool(OURS, version("kubetrain"), _sync),
        Tool(TEXTBOOK, version("boto3"), _script(PYTHON, "boto3_download_file.py")),
        Tool("boto3 get_object", version("boto3"), _script(PYTHON, "boto3_get_object.py")),
        Tool("aws s3 cp", _version_of(aws, "--version"), lambda download: _aws(aws, download)),
        Tool(RCLONE, _version_of(rclone, "version"), lambda download: _rclone(rclone, download)),
        Tool(S5CMD, _version_of(s5cmd, "version"), lambda download: _s5cmd(s5cmd, download)),
        Tool("obstore", _version_of(python, "-c", OBSTORE_VERSION), _script(python, "obstore_download.py")),
        Tool("writing the files alone", platform.python_version(), _write_files),
    ]


OBSTORE_VERSION = "import importlib.metadata, obstore; print(importlib.metadata.version('obstore'))"


def find_program(name: str, peers: Path) -> str:
    """Return the program's path; empty if there is none."""
    return shutil.which(name, path=f"{peers}{os.pathsep}{os.environ['PATH']}") or ""


def environment(home: Path, download: Download | None = None) -> Mapping[str, str]:
    """Return every tool's environment, without the user's own settings, credentials and proxies."""
    common = {
        **NEVER_A_SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(home / "aws-config"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": os.environ["PATH"],
    }
    if download is None:
        return common
    return {
        **common,
        "AWS_ENDPOINT_URL": download.endpoint_url,
        "AWS_ALLOW_HTTP": "true",
        "RCLONE_CONFIG_BENCHMARK_TYPE": "s3",
        "RCLONE_CONFIG_BENCHMARK_PROVIDER": "Other",
        "RCLONE_CONFIG_BENCHMARK_ENV_AUTH": "true",
        "RCLONE_CONFIG_BENCHMARK_ENDPOINT": download.endpoint_url,
        "RCLONE_CONFIG_BENCHMARK_REGION": "us-east-1",
        "RCLONE_CONFIG_BENCHMARK_LIST_VERSION": "2",
    }


def write_aws_config(home: Path, in_flight: int) -> None:
    """Configure aws-cli's concurrency, which has no command-line option."""
    (home / "aws-config").write_text(f"[default]\ns3 =\n  max_concurrent_requests = {in_flight}\n")


def _sync(download: Download) -> list[str]:
    program = Path(sys.executable).with_name("kubetrain")
    place = [SOURCE, str(download.target), "--s3-endpoint", download.endpoint_url]
    return [str(program), "sync", *place, "--json"]  # it finds the number of requests by itself


def _script(python: str, name: str) -> Callable[[Download], list[str]]:
    def command(download: Download) -> list[str]:
        return [python, str(HERE / name), BUCKET, PREFIX, str(download.target), str(download.in_flight)]

    return command


def _write_files(download: Download) -> list[str]:
    return [PYTHON, str(HERE / "write_files.py"), str(download.target), str(download.objects), str(download.bytes)]


def _aws(program: str, download: Download) -> list[str]:
    return [program, "s3", "cp", "--recursive", "--only-show-errors", SOURCE, str(download.target)]


def _rclone(program: str, download: Download) -> list[str]:
    in_flight = [f"--transfers={download.in_flight}", f"--checkers={download.in_flight}"]
    return [program, "copy", "--quiet", *in_flight, f"benchmark:{BUCKET}/{PREFIX}", str(download.target)]


def _s5cmd(program: str, download: Download) -> list[str]:
    options = ["--endpoint-url", download.endpoint_url, "--log=error", f"--numworkers={download.in_flight}"]
    return [program, *options, "cp", f"{SOURCE}/*", f"{download.target}/"]


def _version_of(program: str, *arguments: str) -> str:
    try:
        asked = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"\d+\.\d+\.\d+", asked.stdout)
    return found[0] if found else ""
