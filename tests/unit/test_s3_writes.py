"""Writes to an S3 server with faults, which must not fail a run that has trained for hours."""

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.httpsession import URLLib3Session

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.retries import ATTEMPTS_VARIABLE
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoreError
from support.faulty_s3 import Fault, FaultyS3, Handler, Stored, refused

FAULTS = 12
"""More than botocore retries by itself."""
Use = Callable[[ObjectStore], object]
USES: dict[str, tuple[str, Use]] = {
    "write": ("put", lambda store: store.write("key", b"new")),
    "write_if": ("put", lambda store: store.write_if("other", b"new", None)),
    "find": ("head", lambda store: store.find("key")),
    "delete": ("delete", lambda store: store.delete("key")),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "MAX_BACK_OFF_SECONDS", 0.01)


@pytest.fixture
def s3() -> FaultyS3:
    return FaultyS3()


@pytest.fixture
def store(s3: FaultyS3, s3_credentials: None) -> Iterator[ObjectStore]:
    s3.put("models/key", b"old")
    with s3.serving() as url:
        yield open_store("s3://bucket/models", url)


def lost(handler: Handler, _: Stored) -> bool:
    """Close the connection without an answer."""
    handler.close_connection = True
    return True


def done_but_lost(*, content: bytes | None = None) -> Fault:
    """Store what was sent, or what another writer sends just then, and answer with a fault of a proxy."""

    def fault(handler: Handler, sent: Stored) -> bool:
        handler.store.put(handler.path.removeprefix("/bucket/"), sent.content if content is None else content)
        handler.error(504, "")
        return True

    return fault


class TestFaults:
    @pytest.mark.parametrize("use", USES)
    @pytest.mark.parametrize("fault", [refused(503, "SlowDown"), refused(500, ""), refused(429, "")])
    def test_every_request_outlasts_many_faults(self, s3: FaultyS3, store: ObjectStore, use: str, fault: Fault) -> None:
        kind, request = USES[use]
        s3.fail(kind, fault, times=FAULTS)
        request(store)
        assert len(s3.requests) == FAULTS + 1

    @pytest.mark.parametrize("use", USES)
    def test_a_lost_connection_to_a_server_that_answered_before_is_retried(
        self, s3: FaultyS3, store: ObjectStore, use: str
    ) -> None:
        kind, request = USES[use]
        store.find("key")
        s3.fail(kind, lost, times=FAULTS)
        request(store)
        assert len(s3.requests) == FAULTS + 2

    def test_a_server_that_an_earlier_step_reached_may_be_down(self, s3: FaultyS3, s3_credentials: None) -> None:
        with s3.serving() as url:
            store = open_store("s3://bucket/models", url, was_reached=True)
            s3.fail("put", lost, times=FAULTS)
            store.write_if("other", b"new", None)
        assert len(s3.requests) == FAULTS + 1

    def test_a_file_outlasts_many_faults(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x" * 1000)
        s3.fail("put", refused(503, "SlowDown"), times=FAULTS)
        store.write("file", tmp_path / "file")
        assert s3.objects["models/file"].content == b"x" * 1000

    @pytest.mark.parametrize("use", USES)
    def test_the_number_of_attempts_can_be_set(
        self, s3: FaultyS3, store: ObjectStore, use: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ATTEMPTS_VARIABLE, "3")
        kind, request = USES[use]
        s3.fail(kind, refused(503, "SlowDown"), times=FAULTS)
        with pytest.raises(StoreError, match=r"of s3://bucket/models: (SlowDown|503)"):
            request(store)
        assert len(s3.requests) == 3

    @pytest.mark.parametrize("use", USES)
    def test_a_permanent_refusal_is_not_retried(self, s3: FaultyS3, store: ObjectStore, use: str) -> None:
        kind, request = USES[use]
        s3.fail(kind, refused(403, "AccessDenied"), times=FAULTS)
        with pytest.raises(StoreError, match="denied"):
            request(store)
        assert len(s3.requests) == 1

    def test_the_server_is_left_alone_for_as_long_as_it_asks(self, s3: FaultyS3, store: ObjectStore) -> None:
        s3.fail("put", refused(503, "SlowDown", {"Retry-After": "1"}))
        started = time.monotonic()
        store.write("key", b"new")
        assert time.monotonic() - started >= 1

    def test_an_error_of_this_machine_is_not_retried(
        self, s3: FaultyS3, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent = []

        def send(*arguments: object) -> None:
            sent.append(arguments)
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(URLLib3Session, "send", send)
        with pytest.raises(OSError, match="Input/output error"):
            store.write("key", b"new")
        assert len(sent) == 1


class TestConditionalWrites:
    def test_a_write_whose_answer_was_lost_is_not_another_writers(self, s3: FaultyS3, store: ObjectStore) -> None:
        found = store.find("key")
        assert found is not None
        s3.fail("put", done_but_lost())
        store.write_if("key", b"new", found.etag)
        assert s3.objects["models/key"].content == b"new"

    def test_another_writer_during_a_fault_is_noticed(self, s3: FaultyS3, store: ObjectStore) -> None:
        found = store.find("key")
        assert found is not None
        s3.fail("put", done_but_lost(content=b"other"))
        with pytest.raises(ObjectChanged):
            store.write_if("key", b"new", found.etag)
        assert s3.objects["models/key"].content == b"other"

    def test_the_same_bytes_of_another_writer_before_are_a_change(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectChanged):
            store.write_if("key", b"old", None)
