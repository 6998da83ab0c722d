"""Notes on a job are written by a thread of their own, which keeps only the newest values."""

import threading
from collections.abc import Iterator, Mapping

import pytest

from kubetrain_components.jobs.kubernetes import followed
from kubetrain_components.jobs.kubernetes.followed import Notes


class Job:
    """Takes notes slowly, and only if it may."""

    def __init__(self) -> None:
        self.tried: list[dict[str, str]] = []
        self.accepts = True
        self.began, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def annotate(self, values: Mapping[str, str]) -> bool:
        self.tried.append(dict(values))
        self.began.release()
        assert self.may_end.acquire(timeout=60)
        return self.accepts


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def notes(job: Job) -> Iterator[Notes]:
    notes = Notes(job.annotate)
    notes.start()
    yield notes
    notes.stop()
    job.may_end.release()
    notes.join(60)
    assert not notes.is_alive()


def test_values_that_come_while_others_are_written_are_written_together_and_only_the_newest(
    job: Job, notes: Notes
) -> None:
    notes.put({"progress": "1"})
    assert job.began.acquire(timeout=60)
    for step in ("2", "3"):
        notes.put({"progress": step})
    notes.put({"position": "b"})
    job.may_end.release()
    assert job.began.acquire(timeout=60)
    assert job.tried == [{"progress": "1"}, {"progress": "3", "position": "b"}]


def test_what_could_not_be_written_is_tried_again_without_what_was_replaced(
    job: Job, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "AGAIN_SECONDS", 0.01)
    job.accepts = False
    notes.put({"progress": "1", "seconds": "10"})
    assert job.began.acquire(timeout=60)
    notes.put({"progress": "2"})
    job.may_end.release()
    assert job.began.acquire(timeout=60)
    assert job.tried[1] == {"progress": "2", "seconds": "10"}


def test_a_rejection_does_not_keep_the_thread(job: Job, notes: Notes) -> None:
    job.accepts = False
    notes.put({"progress": "1"})
    assert job.began.acquire(timeout=60)
    job.may_end.release()
    notes.stop()
    notes.join(60)
    assert not notes.is_alive() and len(job.tried) == 1, "it would try again after a minute"
