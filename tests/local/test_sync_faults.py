"""`kubetrain sync` against servers that stall, break off or refuse, disks that are full, and other syncs."""

import fcntl
import hashlib
import json
import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.cli import KUBETRAIN, Finished, interrupt, kubetrain, read_until, start


class HostileS3(ThreadingHTTPServer):
    """Lists and serves the objects of any bucket, each with the trouble that is left for it."""

    daemon_threads = True

    def __init__(self, objects: dict[str, bytes], troubles: dict[str, list[str]]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.objects = objects
        self.troubles = troubles
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Request(BaseHTTPRequestHandler):
    server: HostileS3

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        if "list-type" in path.query:
            self.answer(listing(self.server.objects))
            return
        key = unquote(path.path).split("/", 2)[2]
        content, troubles = self.server.objects[key], self.server.troubles.get(key, [])
        match troubles.pop(0) if troubles else "":
            case "503":
                self.send_error(503)
            case "cut":
                self.answer(content, sent=content[: len(content) // 2])
            case "silent":
                self.answer(content, sent=b"")
                self.server.over.wait()
            case "slow":
                self.answer(content, sent=b"")
                with suppress(BrokenPipeError, ConnectionResetError):
                    while not self.server.over.wait(0.2):
                        self.wfile.write(b"x")
            case _:
                self.answer(content)

    def answer(self, content: bytes, sent: bytes | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.md5(content).hexdigest()}"')
        self.end_headers()
        self.wfile.write(content if sent is None else sent)

    def log_message(self, *unused: object) -> None:
        pass


def listing(objects: dict[str, bytes]) -> bytes:
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(content)}</Size>"
        f"<ETag>&quot;{hashlib.md5(content).hexdigest()}&quot;</ETag></Contents>"
        for key, content in objects.items()
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()


@contextmanager
def hostile_s3(objects: dict[str, bytes], troubles: dict[str, list[str]]) -> Iterator[HostileS3]:
    with HostileS3(objects, troubles) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.over.set()
        server.shutdown()


def arguments(server: HostileS3, directory: Path) -> list[str]:
    return ["sync", "s3://bucket", str(directory), "--endpoint-url", server.url, "--anonymous", "--json"]


def wait_for_downloads(directory: Path, number: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done = [path for path in directory.glob("versions/.*.partial/data/*") if path.is_file()]
        if len(done) == number:
            return
        time.sleep(0.05)
    raise AssertionError(f"{number} objects never came")


@pytest.fixture
def objects() -> dict[str, bytes]:
    return {f"object-{number}": os.urandom(100_000) for number in range(20)}


@pytest.mark.parametrize("trouble", ["slow", "silent"])
def test_ctrl_c_waits_for_no_server_and_the_next_sync_goes_on(
    tmp_path: Path, objects: dict[str, bytes], trouble: str
) -> None:
    with hostile_s3(objects, {key: [trouble] for key in ("object-3", "object-7")}) as server:
        sync = start(*arguments(server, tmp_path))
        wait_for_downloads(tmp_path, 18)
        stopped = interrupt(sync)
        assert (stopped.exit_code, stopped.output.strip()) == (130, "stopped")
        assert stopped.seconds < 5
        report = json.loads(kubetrain(*arguments(server, tmp_path)).output)
        assert (report["downloaded"], report["resumed"]) == (2, 18)
        assert kubetrain("verify", tmp_path).exit_code == 0


def test_a_sync_killed_goes_on(tmp_path: Path, objects: dict[str, bytes]) -> None:
    with hostile_s3(objects, {"object-3": ["silent"]}) as server:
        sync = start(*arguments(server, tmp_path))
        wait_for_downloads(tmp_path, 19)
        os.kill(sync.pid, signal.SIGKILL)
        sync.communicate()
        assert json.loads(kubetrain(*arguments(server, tmp_path)).output)["downloaded"] == 1
        assert kubetrain("verify", tmp_path).exit_code == 0


@pytest.mark.parametrize("troubles", [["cut"], ["cut", "cut"], ["503", "503", "503"]])
def test_a_store_that_recovers_is_no_failure(tmp_path: Path, objects: dict[str, bytes], troubles: list[str]) -> None:
    with hostile_s3(objects, {"object-3": troubles}) as server:
        finished = kubetrain(*arguments(server, tmp_path))
        assert json.loads(finished.output)["downloaded"] == 20
        assert kubetrain("verify", tmp_path).exit_code == 0


def test_a_store_that_does_not_recover_is_said_in_one_sentence(tmp_path: Path, objects: dict[str, bytes]) -> None:
    with hostile_s3(objects, {"object-3": ["cut"] * 9}) as server:
        finished = kubetrain(*arguments(server, tmp_path))
        assert_one_sentence(finished, f"cannot reach S3 at {server.url} for s3://bucket/")
        assert not list((tmp_path / "versions").glob("[!.]*"))


def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large").write_bytes(bytes(200_000))
    limited = f"ulimit -f 100; exec {KUBETRAIN} sync {tmp_path}/source {tmp_path}/staging"
    process = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    finished = Finished(process.returncode, process.stderr, 0)
    assert_one_sentence(finished, f"cannot write to {tmp_path}/staging (File too large): choose a directory")


def test_a_sync_that_waits_for_another_says_so(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"1")
    (tmp_path / "staging").mkdir()
    with (tmp_path / "staging" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = start("sync", tmp_path / "source", tmp_path / "staging")
        assert read_until(second, "waiting") == f"waiting for another sync of {tmp_path / 'staging'}\n"
    second.communicate()
    assert second.returncode == 0


def test_a_dry_run_says_what_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for name in ("a", "b"):
        (tmp_path / "source" / name).write_bytes(b"1")

    def dry_run() -> tuple[bool, int, int]:
        facts = json.loads(kubetrain("sync", tmp_path / "source", tmp_path / "staging", "--dry-run", "--json").output)
        return facts["exists"], facts["to_download"], facts["to_link"]

    assert dry_run() == (False, 2, 0)
    assert not (tmp_path / "staging").exists()
    kubetrain("sync", tmp_path / "source", tmp_path / "staging")
    assert dry_run() == (True, 0, 0)
    (tmp_path / "source" / "a").write_bytes(b"22")
    assert dry_run() == (False, 1, 1)


def test_a_terminal_shows_objects_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for number in range(3):
        (tmp_path / "source" / str(number)).write_bytes(bytes(1000))
    shown = on_a_terminal("sync", tmp_path / "source", tmp_path / "staging")
    assert "3/3 objects" in shown
    assert "3.0/3.0 kB" in shown


def on_a_terminal(*words: str | Path) -> str:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [KUBETRAIN, *map(str, words)],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        pass  # how a terminal says that the other side is gone
    assert process.wait() == 0
    return shown.decode()


def assert_one_sentence(finished: Finished, says: str) -> None:
    assert finished.exit_code == 1, finished.output
    assert finished.output.startswith(f"error: {says}"), finished.output
    assert len(finished.output.splitlines()) == 1
