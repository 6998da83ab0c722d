"""`kubetrain sync` with servers that stall or fail, full disks, and other syncs."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sync_dataset.sync import transfer_job
from support.cli import KUBETRAIN, SOON_SECONDS, Finished, interrupt, kubetrain, read_until, start
from support.faulty_s3 import Fault, FaultyS3, cut_short, refused, silent, slow

CUT, BUSY = cut_short(0), refused(503, "SlowDown")


@pytest.fixture
def objects() -> dict[str, bytes]:
    return {f"object-{number}": os.urandom(100_000) for number in range(20)}


@contextmanager
def hostile_s3(objects: dict[str, bytes], faults: dict[str, list[Fault]]) -> Iterator[str]:
    store = FaultyS3()
    for key, content in objects.items():
        store.put(key, content)
    store.faults.update(faults)
    with store.serving() as url:
        yield url


def arguments(url: str, directory: Path) -> list[str]:
    return ["sync", "s3://bucket", str(directory), "--s3-endpoint", url, "--anonymous", "--json"]


def wait_for_downloads(directory: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        journals = directory.glob("versions/.*.partial/verified.jsonl")
        if sum(len(journal.read_bytes().splitlines()) for journal in journals) == number:
            return
        time.sleep(0.05)
    raise AssertionError(f"{number} objects never came")


@pytest.mark.parametrize("fault", [slow, silent])
def test_ctrl_c_does_not_wait_for_a_server_and_the_next_sync_resumes(
    tmp_path: Path, objects: dict[str, bytes], fault: Fault
) -> None:
    with hostile_s3(objects, {key: [fault] for key in ("object-3", "object-7")}) as url:
        sync = start(*arguments(url, tmp_path))
        wait_for_downloads(tmp_path, 18)
        stopped = interrupt(sync)
        assert (stopped.exit_code, stopped.output.strip()) == (130, "stopped")
        assert stopped.seconds < SOON_SECONDS
        report = json.loads(kubetrain(*arguments(url, tmp_path)).output)
        assert (report["downloaded"], report["resumed"]) == (2, 18)
        assert kubetrain("verify", tmp_path).exit_code == 0


@pytest.mark.parametrize(
    ("access", "header", "value"),
    [
        ("requester-pays", "x-amz-request-payer", "requester"),
        ("anonymous", "authorization", None),
        ("credentials", "x-amz-request-payer", None),
    ],
)
def test_the_transfer_job_uses_the_access_of_the_run(
    tmp_path: Path, access: str, header: str, value: str | None
) -> None:
    store = FaultyS3()
    store.put("data/key", b"x")
    with store.serving() as url:
        run = RunParameters(dataset_uri="s3://bucket/data", s3_endpoint=url, dataset_access=access, run_id="r")
        (replica,) = transfer_job(run, tmp_path, tmp_path).replicas
        keys = {} if access == "anonymous" else {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        without = {name: each for name, each in os.environ.items() if not name.startswith("AWS_")}
        subprocess.run([sys.executable, *replica.command[1:]], env=without | keys, check=True)
    assert {sent.get(header) for sent in store.headers} == {value}


def test_ctrl_c_does_not_wait_for_a_listing(tmp_path: Path, objects: dict[str, bytes]) -> None:
    store = FaultyS3()
    store.page_keys = 3
    for number in range(40):
        store.put(f"folder-{number % 8}/{number}", b"x")
    store.fail("list", lambda *_: False, times=11)
    store.fail("list", silent, times=5)
    with store.serving() as url:
        sync = start(*arguments(url, tmp_path))
        deadline = time.monotonic() + 60
        while len(store.requests) < 12 and time.monotonic() < deadline:
            time.sleep(0.05)
        stopped = interrupt(sync)
    assert (stopped.exit_code, stopped.output.strip()) == (130, "stopped")
    assert stopped.seconds < SOON_SECONDS


def test_a_killed_sync_is_resumed(tmp_path: Path, objects: dict[str, bytes]) -> None:
    with hostile_s3(objects, {"object-3": [silent]}) as url:
        sync = start(*arguments(url, tmp_path))
        wait_for_downloads(tmp_path, 19)
        os.kill(sync.pid, signal.SIGKILL)
        sync.communicate()
        assert json.loads(kubetrain(*arguments(url, tmp_path)).output)["downloaded"] == 1
        assert kubetrain("verify", tmp_path).exit_code == 0


@pytest.mark.parametrize("faults", [[CUT], [CUT, CUT], [BUSY, BUSY, BUSY]])
def test_a_sync_succeeds_if_the_store_recovers(tmp_path: Path, objects: dict[str, bytes], faults: list[Fault]) -> None:
    with hostile_s3(objects, {"object-3": faults}) as url:
        finished = kubetrain(*arguments(url, tmp_path))
        assert json.loads(finished.output)["downloaded"] == 20
        assert kubetrain("verify", tmp_path).exit_code == 0


def test_a_store_that_does_not_recover_is_reported_in_one_sentence(
    tmp_path: Path, objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "4")
    with hostile_s3(objects, {"object-3": [CUT] * 99}) as url:
        finished = kubetrain(*arguments(url, tmp_path))
        assert_one_sentence(finished, f"cannot reach S3 at {url} for object 'object-3' of s3://bucket/")
        assert not list((tmp_path / "versions").glob("[!.]*"))


def test_a_full_disk_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large").write_bytes(bytes(200_000))
    limited = f"ulimit -f 100; exec {KUBETRAIN} sync {tmp_path}/source {tmp_path}/staging"
    process = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    finished = Finished(process.returncode, process.stderr, 0)
    assert_one_sentence(finished, f"cannot write to {tmp_path}/staging (File too large): choose a directory")


def test_a_sync_that_waits_for_another_says_so(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"1")
    kubetrain("sync", tmp_path / "source", tmp_path / "staging")
    (lock_path,) = (tmp_path / "staging" / ".locks").iterdir()
    with lock_path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = start("sync", tmp_path / "source", tmp_path / "staging")
        version = tmp_path / "staging" / "versions" / lock_path.name
        assert read_until(second, "waiting") == f"waiting for another sync of {version}\n"
    second.communicate()
    assert second.returncode == 0


def test_a_dry_run_shows_what_exists_already(tmp_path: Path) -> None:
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
