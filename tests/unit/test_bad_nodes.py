"""A job whose preflight found bad nodes starts again without them, whichever launcher makes the next attempt."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kubetrain_components.jobs.annotations import AVOIDED_NODES_ANNOTATION, FAILED, VERDICT_ANNOTATION
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobHandle, LogLine, Phase
from kubetrain_components.jobs.verdict import JobFailed
from support.jobs import MemoryBackend, job, script

JOB = job(script("chief"), script("worker"), backoff_limit=3)
NAME = JOB.identity.name
SECOND, THIRD = f"{NAME}-a2", f"{NAME}-a3"
DISRUPTED = {"exit_code": 143, "was_disrupted": True}


def found(nodes: object) -> dict[str, object]:
    """Return the end of pods whose preflight found these nodes to be bad."""
    error = f"bad nodes found before the first step: {nodes}"
    words = {"status": "failed", "error": error, "curable": False, "avoid_nodes": nodes}
    return {"exit_code": 1, "last_words": json.dumps(words)}


class Killed(BaseException):
    """The launcher was killed."""


class Cluster(MemoryBackend):
    """The pods of each attempt end by the next of these ends, and those of the one after them succeed."""

    def __init__(self, *ends: dict[str, object], phase: Phase = Phase.FAILED) -> None:
        super().__init__()
        self._ends, self._phase = list(ends), phase
        """The phase of the job when its pods have failed: Running if the cluster would restart them."""
        self.created: dict[str, tuple[str, ...]] = {}
        """The nodes that each attempt avoids, by its name."""
        self.told: list[str] = []
        self.kills_before = ""
        """The attempt before which the launcher is killed."""

    def create(self, job: Job) -> JobHandle:
        if job.identity.name == self.kills_before:
            raise Killed
        handle = super().create(job)
        self.created[handle.name] = job.avoided_nodes
        if self._ends:
            self.finish(handle.name, Phase.FAILED, finished=1.0, **self._ends.pop(0))
            self.change(handle.name, phase=self._phase)
        else:
            self.finish(handle.name, Phase.SUCCEEDED, exit_code=0)
        return handle

    def fail(self, handle: JobHandle, reason: str) -> None:
        self.annotate(handle, {VERDICT_ANNOTATION: FAILED})
        self.change(handle.name, phase=Phase.FAILED)

    def launch(self, job: Job = JOB) -> None:
        run_job(job, self, lambda line: self.told.append(line.text))


class Forgetful(Cluster):
    """It accepts no annotations, and deletes a job that it cannot fail."""

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> bool:
        return False

    def fail(self, handle: JobHandle, reason: str) -> None:
        self.delete(handle)


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FAILED])
def test_bad_nodes_add_up_over_the_attempts(phase: Phase) -> None:
    cluster = Cluster(found(["node-1"]), found(["node-2", "node-3"]), phase=phase)
    cluster.launch()
    assert cluster.created == {NAME: (), SECOND: ("node-1",), THIRD: ("node-1", "node-2", "node-3")}
    restarts = [line for line in cluster.told if "the job restarts" in line]
    assert restarts[0] == (
        "launch_training failed: chief-0: bad nodes found before the first step: ['node-1']; "
        "the job restarts without node-1 once all of its pods have ended"
    )
    assert "restarts without node-1, node-2, node-3 once" in restarts[1]


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FAILED])
def test_a_launcher_that_is_killed_before_the_next_attempt_leaves_its_nodes_to_another(phase: Phase) -> None:
    cluster = Cluster(found(["node-1"]), found(["node-2"]), phase=phase)
    for attempt in (SECOND, THIRD):
        cluster.kills_before = attempt
        with pytest.raises(Killed):
            cluster.launch()
    cluster.kills_before = ""
    cluster.launch()
    assert cluster.created == {NAME: (), SECOND: ("node-1",), THIRD: ("node-1", "node-2")}


def test_an_attempt_after_a_disruption_still_avoids_them() -> None:
    cluster = Cluster(found(["node-1"]), DISRUPTED)
    cluster.kills_before = THIRD
    with pytest.raises(Killed):
        cluster.launch()
    cluster.kills_before = ""
    cluster.launch()
    assert cluster.created[THIRD] == ("node-1",)


def test_a_launch_with_other_settings_may_use_them_again() -> None:
    cluster = Cluster(found(["node-1"]))
    cluster.kills_before = SECOND
    with pytest.raises(Killed):
        cluster.launch()
    cluster.kills_before = ""
    cluster.launch(replace(JOB, backoff_limit=JOB.backoff_limit + 1))
    assert cluster.created[SECOND] == ()


def test_nodes_that_cannot_be_annotated_are_remembered() -> None:
    cluster = Forgetful(found(["node-1"]), found(["node-2"]), phase=Phase.RUNNING)
    cluster.launch()
    assert cluster.deleted == [NAME, NAME]
    assert cluster.created == {NAME: ("node-1", "node-2")}


def test_a_launcher_that_follows_a_later_attempt_adds_to_what_it_avoids() -> None:
    cluster = Forgetful(found(["node-2"]), phase=Phase.RUNNING)
    cluster.create(replace(JOB, avoided_nodes=("node-1",)))
    cluster.launch()
    assert cluster.created[NAME] == ("node-1", "node-2")


def test_the_last_attempt_tells_all_bad_nodes_and_what_to_do() -> None:
    cluster = Cluster(*(found([f"node-{number}"]) for number in range(1, 6)))
    with pytest.raises(JobFailed) as failed:
        cluster.launch()
    assert len(cluster.created) == 4
    assert str(failed.value) == (
        "launch_training failed: chief-0: bad nodes found before the first step: ['node-4']; no attempts are "
        "left after 3 without a new step: repair node-1, node-2, node-3, node-4 and start a new run, or leave out "
        "train.preflight=avoid to train there"
    )


@pytest.mark.parametrize("nodes", ["node-1", 7, [], [1, None], ["no name", "a,b", "UPPER"]])
def test_a_message_without_names_of_nodes_is_a_failure_like_others(nodes: object) -> None:
    cluster = Cluster(found(nodes))
    with pytest.raises(JobFailed, match="bad nodes found before the first step"):
        cluster.launch()
    assert cluster.created == {NAME: ()}


def test_nodes_that_an_earlier_start_of_the_pods_found_are_not_avoided_for_a_later_failure() -> None:
    cluster = Cluster()
    MemoryBackend.create(cluster, JOB)
    chief, worker = cluster.jobs[NAME].pods
    restarted = replace(chief, restarts=1, finished=1000.0, **found(["node-1"]))
    failed = replace(worker, phase=Phase.FAILED, exit_code=137, finished=1500.0, cause="ran out of memory")
    cluster.change(NAME, phase=Phase.FAILED, pods=(restarted, failed))
    with pytest.raises(JobFailed, match="worker1-0 ran out of memory"):
        cluster.launch()
    assert AVOIDED_NODES_ANNOTATION not in cluster.jobs[NAME].annotations


def test_the_attempts_of_a_job_have_one_spec() -> None:
    assert replace(JOB, avoided_nodes=("node-1",)).spec_hash == JOB.spec_hash
    told: list[LogLine] = []
    backend = MemoryBackend()
    backend.create(replace(JOB, avoided_nodes=("node-1",)))
    backend.finish(NAME, Phase.SUCCEEDED, exit_code=0)
    assert run_job(JOB, backend, told.append).phase is Phase.SUCCEEDED
