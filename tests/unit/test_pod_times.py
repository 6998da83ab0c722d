"""When pods began and ended, from states recorded on a real cluster, and from manifests for what these lack."""

from pathlib import Path
from typing import Any

import yaml

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobTimes, PodTimes
from kubetrain_components.jobs.kubernetes.pod_end import seconds
from kubetrain_components.jobs.kubernetes.pod_times import job_times, pod_times

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> JobTimes:
    seen = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
    return job_times(JobKind(seen["job"]["kind"]).traits.container, [seen["job"]], seen["pods"])


def at(clock: str) -> float:
    return seconds(f"2026-11-22T{clock}Z")


def test_a_preempted_pod() -> None:
    (pod,) = recorded("preempted").pods
    assert (pod.created, pod.started, pod.ended) == (at("03:17:10"), at("03:17:12"), at("03:17:17"))
    assert pod.was_disrupted


def test_an_evicted_pod_and_its_replacement() -> None:
    evicted, replacement = recorded("evicted_by_api").pods
    assert (evicted.ended, evicted.was_disrupted) == (at("00:21:57"), True)
    assert (replacement.started, replacement.ended, replacement.was_disrupted) == (at("00:21:59"), 0, False)


def test_a_pod_that_a_queue_evicted() -> None:
    (pod,) = recorded("kueue_preempted_batch").pods
    assert pod.was_disrupted


def test_a_pod_that_failed_by_itself_was_not_disrupted() -> None:
    assert not any(pod.was_disrupted for pod in recorded("failed_tensorflow").pods)


def test_the_first_start_of_a_container_that_restarted_often_is_unknown() -> None:
    (pod,) = recorded("crash_loop").pods
    assert (pod.started, pod.restarted, pod.ended) == (0, (at("00:21:47"),), 0)


def test_a_pod_that_has_not_started() -> None:
    pods = {pod.started: pod for pod in recorded("succeeded_while_a_worker_starts").pods}
    assert set(pods) == {0, at("00:21:06")}


def pod(**changes: Any) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": "2", "cpu": "8"}, "requests": {"nvidia.com/gpu": "2", "cpu": "1500m"}}
    return {
        "metadata": {"creationTimestamp": "2026-11-22T10:00:00Z"},
        "spec": {"containers": [{"name": "pytorch", "resources": resources}, {"name": "sidecar"}]},
        "status": {"phase": "Running", **changes},
    }


def test_a_pod_holds_its_node_from_when_it_was_scheduled() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-22T10:05:00Z"}
    running = {"name": "pytorch", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-22T10:06:00Z"}}}
    assert pod_times("pytorch", pod(conditions=[scheduled], containerStatuses=[running])) == PodTimes(
        created=at("10:00:00"), scheduled=at("10:05:00"), started=at("10:06:00"), gpus=2, cpus=1.5
    )


def test_a_pod_that_waits_for_a_node_holds_none() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2026-11-22T10:00:00Z"}
    assert pod_times("pytorch", pod(conditions=[waiting], phase="Pending")).scheduled == 0


def test_both_starts_of_a_container_that_restarted_once_are_known() -> None:
    before = {"terminated": {"startedAt": "2026-11-22T10:01:00Z", "finishedAt": "2026-11-22T10:02:00Z", "exitCode": 1}}
    now = {"running": {"startedAt": "2026-11-22T10:03:00Z"}}
    status = {"name": "pytorch", "restartCount": 1, "lastState": before, "state": now}
    times = pod_times("pytorch", pod(containerStatuses=[status]))
    assert (times.started, times.restarted, times.ended) == (at("10:01:00"), (at("10:03:00"),), 0)


def test_a_pod_deleted_without_a_trace_ends_when_it_was_last_seen() -> None:
    running = {"name": "pytorch", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-22T10:06:00Z"}}}
    assert pod_times("pytorch", {**pod(containerStatuses=[running]), "deleted": True}).ended == at("10:06:00")
