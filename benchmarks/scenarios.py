"""The scenarios: the data, its server, and the check that a tool has done its work."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataset import BUCKET, Dataset, write_files, write_shards
from peers import OURS, TEXTBOOK, environment, find_program
from servers import rclone_server, stub_server

OBJECTS_PER_SECOND, CPU_PER_OBJECT = "objects/s", "CPU ms/object"
MEGABYTES_PER_SECOND, CPU_PER_GIGABYTE = "MB/s", "CPU s/GB"
CPU_SECONDS, PEAK_MEGABYTES = "CPU s", "peak MB"

MAKE_VERSION = Path(__file__).with_name("make_version.py")
SHARDS, SHARD_BYTES = 8, 128 << 20
LATENCY_MS = 30


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    peers: Path
    objects: int | None
    listed_objects: int | None
    shard_bytes: int
    checksum: str


class NotDone(Exception):
    """A tool reported success, but its result is incomplete."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    title: str
    objects: int
    bytes: int
    in_flight: int
    columns: tuple[str, ...]
    serve: Callable[[Path], AbstractContextManager[str]]
    """Start the server on a folder for its data, and return its endpoint."""
    textbook_in_flight: int
    is_noop: bool = False

    def in_flight_of(self, tool: str) -> int:
        return self.textbook_in_flight if tool == TEXTBOOK else self.in_flight

    def takes_part(self, tool: str) -> bool:
        return tool == OURS or not self.is_noop

    def check(self, tool: str, target: Path, output: Path) -> dict[str, Any]:
        """Check the target and return kubetrain's own report, if it made one.

        Raises:
            NotDone: if the target is incomplete.
        """
        report: dict[str, Any] = last_json_line(output) if tool == OURS else {}
        if self.is_noop:
            _expect("downloaded objects", report["downloaded"], 0)
            _expect("objects", report["objects"], self.objects)
        else:
            sizes = list(_file_sizes(_data_folder(target) if tool == OURS else target))
            _expect("files", len(sizes), self.objects)
            _expect("bytes", sum(sizes), self.bytes)
        return report


def all_scenarios(options: Options) -> dict[str, Scenario]:
    scenarios = (
        _small(options),
        _crc(options),
        _large(options),
        _large_crc(options),
        _listing(options),
        _latency(options),
        _latency(options, "mixed", "one answer in 16 at once"),
        _latency(options, "late-body", "heads at once"),
    )
    return {each.name: each for each in scenarios}


def _small(options: Options) -> Scenario:
    dataset = Dataset(options.objects or 5000)

    @contextmanager
    def serve(folder: Path) -> Iterator[str]:
        write_files(dataset, folder / BUCKET)
        with _rclone(options, folder) as url:
            yield url

    return _small_objects("small", "100 KB, MD5", dataset, serve, in_flight=16)


def _crc(options: Options) -> Scenario:
    dataset = Dataset(options.objects or 5000)
    arguments = [f"--objects={dataset.objects}", f"--checksum={options.checksum}"]
    title = f"100 KB, {options.checksum.upper()}"
    return _small_objects("crc", title, dataset, lambda folder: stub_server(arguments), in_flight=16)


def _latency(options: Options, kind: str = "steady", note: str = "") -> Scenario:
    dataset = Dataset(options.objects or 5000)
    arguments = [f"--objects={dataset.objects}", f"--checksum={options.checksum}"]
    arguments += [f"--latency-ms={LATENCY_MS}", f"--latency-kind={kind}"]
    title = f"100 KB, {LATENCY_MS} ms away{f', {note}' if note else ''}"
    name = "latency" if kind == "steady" else kind
    return _small_objects(name, title, dataset, lambda folder: stub_server(arguments), in_flight=64)


def _small_objects(
    name: str, title: str, dataset: Dataset, serve: Callable[[Path], AbstractContextManager[str]], in_flight: int
) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        objects=dataset.objects,
        bytes=dataset.size,
        in_flight=in_flight,
        textbook_in_flight=in_flight,
        columns=(OBJECTS_PER_SECOND, CPU_PER_OBJECT),
        serve=serve,
    )


def _large(options: Options) -> Scenario:
    @contextmanager
    def serve(folder: Path) -> Iterator[str]:
        write_shards(SHARDS, options.shard_bytes, folder / BUCKET)
        with _rclone(options, folder) as url:
            yield url

    return _large_objects("large", "MD5", options, serve)


def _large_crc(options: Options) -> Scenario:
    arguments = [f"--objects={SHARDS}", f"--object-bytes={options.shard_bytes}", f"--checksum={options.checksum}"]
    return _large_objects("large-crc", options.checksum.upper(), options, lambda folder: stub_server(arguments))


def _large_objects(
    name: str, checksum: str, options: Options, serve: Callable[[Path], AbstractContextManager[str]]
) -> Scenario:
    return Scenario(
        name=name,
        title=f"{SHARDS} objects of {options.shard_bytes >> 20} MiB, {checksum}",
        objects=SHARDS,
        bytes=SHARDS * options.shard_bytes,
        in_flight=SHARDS,
        # One file after another, each with boto3's default of ten threads.
        textbook_in_flight=1,
        columns=(MEGABYTES_PER_SECOND, CPU_PER_GIGABYTE),
        serve=serve,
    )


def _listing(options: Options) -> Scenario:
    dataset = Dataset(options.listed_objects or 1_000_000)
    return Scenario(
        name="listing",
        title=f"{dataset.objects:,} unchanged",
        objects=dataset.objects,
        bytes=dataset.size,
        in_flight=16,
        textbook_in_flight=16,
        columns=(CPU_SECONDS, PEAK_MEGABYTES),
        serve=lambda folder: stub_server([f"--objects={dataset.objects}", "--listing-only"]),
        is_noop=True,
    )


def prepare_target(scenario: Scenario, target: Path) -> None:
    target.mkdir()
    if scenario.is_noop:
        # A separate process: this one's memory would count as its children's peak.
        subprocess.run([sys.executable, str(MAKE_VERSION), str(scenario.objects), str(target)], check=True)


def _rclone(options: Options, folder: Path) -> AbstractContextManager[str]:
    program = find_program("rclone", options.peers)
    if not program:
        raise SystemExit("small and large need rclone as their server: make benchmark installs it")
    return rclone_server(program, folder, environment(folder))


def last_json_line(output: Path) -> Any:
    lines = [line for line in output.read_text().splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


def _expect(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise NotDone(f"{found} {what}, not {expected}")


def _data_folder(target: Path) -> Path:
    folders = list(target.glob("versions/[!.]*/data"))
    _expect("versions", len(folders), 1)
    return folders[0]


def _file_sizes(folder: Path) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        yield from (os.stat(os.path.join(parent, name)).st_size for name in names)  # noqa: PTH116, PTH118 - many files
