"""The cache of shards beside a training: bounded, verified, and patient with a store in trouble."""

import contextlib
import hashlib
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from typing import Any

import pytest

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.serve_shards import serve
from kubetrain_components.serve_shards.bounded_cache import BoundedCache
from kubetrain_components.serve_shards.serve import own_folder, serving
from kubetrain_components.sites.local import LocalSite
from kubetrain_trainer.data.shard_cache import (
    EVALUATION,
    PARTS,
    TRAINING,
    ShardCache,
    StoredShard,
)
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.sidecar import SOCKET, StoreSilent
from support.disk import file_sizes
from support.faulty_s3 import FaultyS3, cut_short, damaged, flipped, refused, replaced
from support.prometheus import wait_until

CACHE_BYTES = 4000
LIMIT = int(CACHE_BYTES * PARTS[TRAINING])
SIZE = 1000


@pytest.fixture
def s3() -> FaultyS3:
    return FaultyS3()


@pytest.fixture
def url(s3: FaultyS3, s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
    with s3.serving() as url:
        yield url


@pytest.fixture
def cache(url: str, tmp_path: Path) -> Iterator[ShardCache]:
    with serving(open_store("s3://bucket/data", url, was_reached=True), tmp_path / "cache", CACHE_BYTES):
        yield ShardCache(tmp_path / "cache", TRAINING)


def put(s3: FaultyS3, number: int) -> StoredShard:
    content = bytes([number]) * SIZE
    key = f"train/{number}.tar"
    s3.put(f"data/{key}", content)
    return StoredShard(key, SIZE, str(s3.objects[f"data/{key}"].etag), hashlib.sha256(content).hexdigest())


def read(cache: ShardCache, shard: StoredShard) -> bytes:
    with os.fdopen(cache.open(shard), "rb") as file:
        return file.read()


def test_many_readers_get_their_shards_within_the_limit(s3: FaultyS3, cache: ShardCache) -> None:
    shards = [put(s3, number) for number in range(20)]
    most, is_over = 0, threading.Event()

    def observe() -> None:
        nonlocal most
        while not is_over.is_set():
            most = max(most, sum(file_sizes(cache.folder)))

    observer = threading.Thread(target=observe)
    observer.start()
    with ThreadPoolExecutor(8) as readers:
        cache.announce(shards)
        contents = list(readers.map(lambda shard: read(cache, shard), shards * 3))
    is_over.set()
    observer.join()
    assert contents == [bytes([number]) * SIZE for number in range(20)] * 3
    assert SIZE <= most <= LIMIT
    assert {path.stat().st_mode & 0o777 for path in (cache.folder / TRAINING).iterdir()} == {0o444}


def test_what_was_announced_is_there_before_it_is_needed(s3: FaultyS3, cache: ShardCache) -> None:
    shards = [put(s3, number) for number in range(3)]
    cache.announce(shards)
    wait_until(lambda: cache.counts().get("shards_fetched") == 3)
    for shard in shards:
        assert read(cache, shard)
    assert cache.counts() == {"shards_fetched": 3, "shard_waits": 0}
    assert all(len(s3.gets(f"data/{shard.key}")) == 1 for shard in shards)


def test_shards_of_an_evaluation_leave_those_of_the_training_alone(s3: FaultyS3, cache: ShardCache) -> None:
    shards = [put(s3, number) for number in range(9)]
    for shard in shards[:3]:
        read(cache, shard)
    for shard in shards[3:]:
        read(ShardCache(cache.folder, EVALUATION), shard)
    assert {path.name for path in (cache.folder / TRAINING).iterdir()} == {shard.file_name for shard in shards[:3]}
    assert [path.name for path in (cache.folder / EVALUATION).iterdir()] == [shards[-1].file_name]


def test_a_shard_stays_while_a_reader_opens_it(tmp_path: Path) -> None:
    shards = [StoredShard(f"{number}.tar", SIZE, "etag", "") for number in range(3)]
    cache = BoundedCache(tmp_path / "cache", SIZE, lambda shard, path: path.write_bytes(bytes(SIZE)) and None)
    with contextlib.closing(cache), ThreadPoolExecutor() as threads:
        with cache.held(shards[0]):
            other = threads.submit(lambda: cache.held(shards[1]).__enter__())
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
            assert (tmp_path / "cache" / shards[0].file_name).exists()
        other.result(timeout=30)
    assert not (tmp_path / "cache" / shards[0].file_name).exists()


def test_only_one_of_two_readers_fetches(tmp_path: Path) -> None:
    shard = StoredShard("0.tar", SIZE, "etag", "")
    with contextlib.closing(BoundedCache(tmp_path / "cache", SIZE, lambda shard, path: None)) as cache:
        (first, fetches), (second, fetches_too) = cache._hold(shard), cache._hold(shard)
        assert first is second
        assert (fetches, fetches_too) == (True, False)
        assert not first.fetched.cancelled()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    cache = BoundedCache(tmp_path / "cache", SIZE - 1, lambda shard, path: None)
    with (
        contextlib.closing(cache),
        pytest.raises(KubetrainError, match=r"1,000 bytes does not fit .* 999 bytes: raise data.cache_gb"),
    ):
        cache.held(StoredShard("0.tar", SIZE, "etag", "")).__enter__()


def test_files_that_another_program_deletes_are_fetched_again(s3: FaultyS3, cache: ShardCache) -> None:
    shards = [put(s3, number) for number in range(9)]
    for _ in range(2):
        assert read(cache, shards[0])
        (cache.folder / TRAINING / shards[0].file_name).unlink()
    assert len(s3.gets("data/train/0.tar")) == 2
    for shard in shards[1:]:
        assert read(cache, shard), "deleted files take no space"
    assert len(list((cache.folder / TRAINING).iterdir())) == LIMIT // SIZE


@pytest.mark.parametrize(
    "faults",
    [
        [refused(503, "SlowDown")] * 3,
        [cut_short(300), cut_short(200)],
        [flipped],
        [cut_short(300), refused(500, "InternalError"), flipped],
    ],
    ids=["503", "reset", "damaged-on-the-way", "all"],
)
def test_passing_trouble_is_only_a_delay(s3: FaultyS3, cache: ShardCache, faults: list[Any]) -> None:
    shard = put(s3, 1)
    for fault in faults:
        s3.fail(f"data/{shard.key}", fault)
    assert read(cache, shard) == bytes([1]) * SIZE
    assert not list(cache.folder.rglob("*.partial"))


def test_a_server_that_dies_and_returns_is_only_a_delay(s3: FaultyS3, url: str, tmp_path: Path) -> None:
    shard, other = put(s3, 1), put(s3, 2)
    with contextlib.ExitStack() as stack:
        with s3.serving() as first:
            store = open_store("s3://bucket/data", first, was_reached=True)
            stack.enter_context(serving(store, tmp_path / "cache", CACHE_BYTES))
            cache = ShardCache(tmp_path / "cache", TRAINING)
            assert read(cache, shard)
        waiting = stack.enter_context(ThreadPoolExecutor()).submit(read, cache, other)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        stack.enter_context(s3.serving(port=int(first.rpartition(":")[2])))
        assert waiting.result(timeout=60) == bytes([2]) * SIZE


def test_a_changed_shard_is_refused_by_name(s3: FaultyS3, cache: ShardCache) -> None:
    shard = put(s3, 1)
    s3.fail(f"data/{shard.key}", replaced(f"data/{shard.key}", b"x" * SIZE))
    message = "s3://bucket/data/train/1.tar was changed or deleted after the dataset was synced: start a new run"
    for _ in range(2):
        with pytest.raises(KubetrainError, match=message) as caught:
            cache.open(shard)
        assert not caught.value.is_curable
    assert not sum(file_sizes(cache.folder))


def test_a_shard_that_is_damaged_in_the_store_is_refused_by_name(s3: FaultyS3, cache: ShardCache) -> None:
    shard = put(s3, 1)
    s3.fail(f"data/{shard.key}", damaged, times=9)
    with pytest.raises(KubetrainError, match=r"train/1.tar does not have the SHA-256 of its manifest"):
        cache.open(shard)
    assert not sum(file_sizes(cache.folder))


def test_any_error_of_the_server_reaches_the_reader(
    s3: FaultyS3, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("an error that nobody expected")

    monkeypatch.setattr(serve, "fetch_shard", fail)
    cache = ShardCache(tmp_path / "cache", TRAINING)
    with serving(open_store("s3://bucket/data", url, was_reached=True), cache.folder, CACHE_BYTES):
        message = r"the shard cache failed \(ValueError: an error that nobody expected\)"
        with pytest.raises(KubetrainError, match=message):
            cache.open(put(s3, 1))
        with pytest.raises(KubetrainError, match=r"the shard cache failed \(KeyError: 'other'\)"):
            ShardCache(cache.folder, "other").open(put(s3, 1))


def test_a_write_that_is_cut_short_is_not_published(s3: FaultyS3, url: str, tmp_path: Path) -> None:
    shard, cache = put(s3, 1), ShardCache(tmp_path / "cache", TRAINING)
    process = start(url, cache.folder)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (SIZE - 400, SIZE - 400))
    with pytest.raises(KubetrainError, match=r"cannot write to the shard cache \(File too large\)"):
        cache.open(shard)
    assert not sum(file_sizes(cache.folder))
    process.terminate()
    assert process.wait(30) == 0


def test_lasting_trouble_ends_with_its_cause(s3: FaultyS3, cache: ShardCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "GIVE_UP_SECONDS", 0.2)
    shard, other = put(s3, 1), put(s3, 2)
    s3.fail(f"data/{shard.key}", refused(503, "SlowDown"), times=99)
    with pytest.raises(StoreSilent, match=r"train/1.tar.*SlowDown") as caught:
        cache.open(shard)
    assert caught.value.is_curable
    s3.faults.clear()
    assert read(cache, shard), "it is tried again when it is needed again"
    assert read(cache, other)


def test_shards_that_cannot_be_fetched_take_no_space(
    s3: FaultyS3, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubetrain_trainer.sidecar.ABSENT_SECONDS", 0.1)
    store, cache = open_store("s3://bucket/data", url, was_reached=True), ShardCache(tmp_path / "cache", TRAINING)
    with ThreadPoolExecutor() as threads, serving(store, cache.folder, CACHE_BYTES):
        for number in range(LIMIT // SIZE):
            shard = put(s3, number)
            s3.fail(f"data/{shard.key}", refused(403, "AccessDenied"))
            with pytest.raises(KubetrainError, match=f"{shard.key}.*AccessDenied"):
                cache.open(shard)
        assert threads.submit(read, cache, shard).result(timeout=30)


def test_a_reader_that_was_killed_holds_nothing(s3: FaultyS3, cache: ShardCache) -> None:
    shards = [put(s3, number) for number in range(10)]
    program = (
        "import sys, os, signal; from pathlib import Path\n"
        "from kubetrain_trainer.data.shard_cache import ShardCache, StoredShard\n"
        "cache = ShardCache(Path(sys.argv[1]), 'training')\n"
        "with cache._answer({'need': StoredShard(*eval(sys.argv[2]))}): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for shard in shards[:3]:
        killed = subprocess.run([sys.executable, "-c", program, str(cache.folder), repr(tuple(shard))], check=False)
        assert killed.returncode == -9
    for shard in shards:
        assert read(cache, shard)


def start(url: str, folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "kubetrain_components.serve_shards.serve", "--uri", "s3://bucket/data"]
    command += ["--endpoint", url, "--cache-bytes", str(CACHE_BYTES), "--to", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == f"serving the shards of s3://bucket/data from {folder}\n"
    return process


def test_a_process_that_restarts_is_asked_again(s3: FaultyS3, url: str, tmp_path: Path) -> None:
    shards = [put(s3, number) for number in range(2)]
    folder = tmp_path / ("long-" * 30) / "cache"
    cache = ShardCache(folder, TRAINING)
    first = start(url, folder)
    assert stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o666, "the training may run as another user"
    assert read(cache, shards[0])
    asked = threading.Event()
    s3.fail(f"data/{shards[1].key}", lambda handler, stored: asked.set() or s3.is_over.wait(30) or True)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(read, cache, shards[1])
        assert asked.wait(30)
        first.kill()
        first.wait()
        second = start(url, folder)
        assert waiting.result(timeout=60) == bytes([1]) * SIZE
    second.terminate()
    assert second.wait(30) == 0
    assert read(cache, shards[1]), "what is there needs no process"


def test_a_process_that_ends_at_each_request_is_not_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubetrain_trainer.sidecar.ABSENT_SECONDS", 0.1)

    class Ending(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(UnixStreamServer(str(tmp_path / SOCKET), Ending))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        with pytest.raises(StoreSilent, match=f"nothing serves the shard cache {tmp_path} \\(it ended\\)"):
            ShardCache(tmp_path, TRAINING).open(StoredShard("0.tar", SIZE, "etag", ""))


def test_each_local_run_has_its_own_cache(s3: FaultyS3, url: str, tmp_path: Path) -> None:
    shard = put(s3, 1)
    stored = {"uri": "s3://bucket/data", "endpoint": url, "access": "credentials", "cache_bytes": CACHE_BYTES}
    site, dataset = LocalSite(tmp_path / ("long-" * 30)), DatasetPlace(digest="0", shards=stored)
    with site.shard_cache(dataset) as first:
        assert first
        with site.shard_cache(dataset) as second:
            assert second
            assert first != second
            assert stat.S_IMODE((second / SOCKET).stat().st_mode) == 0o600
            assert [read(ShardCache(each, TRAINING), shard) for each in (first, second)] == [bytes([1]) * SIZE] * 2
        assert (first / TRAINING / shard.file_name).exists()
        assert not second.exists()
    assert list(site.workspace.iterdir()) == []


def test_the_cache_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    program = (
        "import sys, os, signal; from pathlib import Path\n"
        "from kubetrain_components.serve_shards.serve import own_folder\n"
        "with own_folder(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -9
    [left] = tmp_path.iterdir()
    with own_folder(tmp_path) as other:
        assert not left.exists()
        assert list(tmp_path.iterdir()) == [other]


def test_without_a_process_the_cause_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubetrain_trainer.sidecar.ABSENT_SECONDS", 0.1)
    cache = ShardCache(tmp_path, TRAINING)
    cache.announce([])
    assert cache.counts() == {}
    with pytest.raises(StoreSilent, match=f"nothing serves the shard cache {tmp_path}"):
        cache.open(StoredShard("0.tar", SIZE, "etag", ""))
