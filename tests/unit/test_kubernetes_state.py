"""What is read from manifests as a real cluster gave them (recorded/), and from those it gives too rarely to record."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.job import JobState, Phase, PodState
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import describe

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> JobState:
    seen = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
    return job_state(JobKind(seen["job"]["kind"]), seen["job"], seen["pods"], seen.get("events", []))


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        (
            "unschedulable",
            TroubleKind.UNSCHEDULABLE,
            "worker-0: cannot be scheduled (0/1 nodes are available: 1 Insuffici",
        ),
        (
            "image_pull",
            TroubleKind.IMAGE_PULL,
            "worker-0: its image cannot be pulled (registry.invalid/no/such:1: Back-",
        ),
        (
            "image_name",
            TroubleKind.BAD_IMAGE_NAME,
            "worker-0: its image name is invalid (Upper/Case:1: Failed to app",
        ),
        ("missing_secret", TroubleKind.CONFIGURATION, 'refers to is missing (secret "nope" not found)'),
        ("crash_loop", TroubleKind.CRASH_LOOP, "worker-0: it keeps crashing (back-off 40s restarting failed"),
        ("missing_secret_volume", TroubleKind.VOLUME, 'failed for volume "s" : secret "nope" not found)'),
        ("missing_claim", TroubleKind.VOLUME, 'persistentvolumeclaim "nope" not found'),
        ("invalid_pod", TroubleKind.REFUSED, '"2": must be less than or equal to cpu limit of 1)'),
        ("init_container_refused", TroubleKind.INIT_CONTAINER, 'allowPrivilegeEscalation != false (container "init-py'),
        (
            "pod_security",
            TroubleKind.POD_SECURITY,
            'violates PodSecurity "restricted:latest": host namespaces (hostNet',
        ),
        ("quota", TroubleKind.QUOTA, "exceeded quota: q, requested: cpu=50m, used: cpu=0, limited: cpu=10m)"),
        ("quota_without_limits", TroubleKind.REFUSED, "failed quota: q: must specify limits.cpu for: pytorch)"),
        ("denied", TroubleKind.REFUSED, "denied request: every pod names its team)"),
        ("webhook_fails", TroubleKind.NOT_CREATED, 'failed calling webhook "pods.manifests.test"'),
        ("suspended", TroubleKind.QUEUE, "the job: not admitted by the queue (Kueue's queue q)"),
        ("suspended_batch", TroubleKind.QUEUE, "the job: not admitted by the queue (Kueue's queue q)"),
        (
            "kueue_not_admitted",
            TroubleKind.QUEUE,
            "(Kueue's queue research: couldn't assign flavors to pod set master: insufficient quota for cpu",
        ),
        (
            "kueue_preempted_batch",
            TroubleKind.QUEUE,
            "(Kueue's queue research: couldn't assign flavors to pod set main: insufficient unused quota for cpu",
        ),
        (
            "volcano_not_admitted",
            TroubleKind.QUEUE,
            "(Volcano's queue q-small: queue resource quota insufficient: insufficient cpu)",
        ),
    ],
)
def test_the_trouble_is_named_with_its_evidence(name: str, kind: TroubleKind, sentence: str) -> None:
    state = recorded(name)
    assert [trouble.kind for trouble in state.troubles] == [kind]
    assert sentence in state.troubles[0].failure
    assert not state.is_under_way or kind is TroubleKind.CRASH_LOOP


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "out_of_memory",
            "worker-0 ran out of memory (limit 64Mi): raise memory, or lower batch_size or loader_workers "
            "(after 3 restarts)",
        ),
        ("crash_loop", "worker-0 exited with code 3 (after 3 restarts)"),
        ("own_words", "worker-0: no data (after 4 restarts)"),
        ("deleted_by_force", "worker-0 was deleted while it was running (after a restart)"),
        (
            "evicted_by_api",
            "worker-0 was evicted, for example because its node is drained: Eviction API: evicting (after a restart)",
        ),
        (
            "evicted_for_storage",
            "worker-0 was evicted: Pod ephemeral local storage usage exceeds the total limit of containers 10Mi "
            "(after a restart)",
        ),
        (
            "preempted",
            "transfer-0 was preempted by pods of a higher priority: "
            "default-scheduler: preempting to accommodate a higher priority pod",
        ),
        ("failed_tensorflow", "worker-0 exited with code 3"),
        ("init_container_failed", "worker-0 did not start: its init container init-pytorch exited with code 1"),
    ],
)
def test_why_a_pod_ended(name: str, said: str) -> None:
    assert [describe(pod) for pod in recorded(name).pods if pod.exit_code or pod.cause] == [said]


def test_pods_on_a_node_that_does_not_answer_are_in_trouble_though_they_are_called_running() -> None:
    state = recorded("node_lost")
    assert [(trouble.kind, trouble.subject, trouble.evidence) for trouble in state.troubles] == [
        (TroubleKind.NODE, "master-0", "node2"),
        (TroubleKind.NODE, "worker-0", "node2"),
    ]
    assert not state.is_under_way, "nothing takes their place as long as the cluster has the node"


def test_a_pod_that_its_own_node_calls_unready_runs() -> None:
    unready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    state = job_state(JobKind.PYTORCH_JOB, job("Running=True"), [pod(conditions=[unready])])
    assert (state.is_under_way, state.troubles) == (True, ())


def test_when_an_init_container_failed_the_pod_had_ended() -> None:
    worker = recorded("init_container_failed").pods[1]
    assert (worker.name, worker.finished) == ("worker-0", 1795307069.0)


@pytest.mark.parametrize(
    ("name", "phase", "pods"),
    [
        ("complete_batch", Phase.SUCCEEDED, ["evaluation-0 Succeeded"]),
        ("out_of_memory_batch", Phase.FAILED, ["evaluation-0 Failed"]),
        ("failed_tensorflow", Phase.FAILED, ["chief-0 Succeeded", "worker-0 Failed"]),
        ("succeeded_while_a_worker_starts", Phase.SUCCEEDED, ["master-0 Succeeded", "worker-0 Pending"]),
        ("init_container_failed", Phase.SUCCEEDED, ["master-0 Succeeded", "worker-0 Failed"]),
        ("init_container_refused", Phase.PENDING, ["master-0 Succeeded"]),
        ("crash_loop", Phase.RUNNING, ["worker-0 Running"]),
        ("deleted_by_force", Phase.RUNNING, ["worker-0 Running"]),
        ("suspended", Phase.SUSPENDED, []),
        ("suspended_batch", Phase.SUSPENDED, []),
        ("kueue_preempted_batch", Phase.SUSPENDED, []),
        ("evicted_for_storage", Phase.RUNNING, ["master-0 Running", "worker-0 Pending"]),
        ("node_lost", Phase.RUNNING, ["master-0 Pending", "worker-0 Pending"]),
        ("image_pull", Phase.PENDING, ["worker-0 Pending"]),
    ],
)
def test_how_far_the_job_and_its_pods_are(name: str, phase: Phase, pods: list[str]) -> None:
    state = recorded(name)
    assert (state.phase, [f"{pod.name} {pod.phase}" for pod in state.pods]) == (phase, pods)


def test_a_job_whose_worker_is_refused_is_not_under_way_though_its_master_is() -> None:
    state = recorded("init_container_refused")
    assert state.missing == 1
    assert not state.is_under_way


def test_every_pod_of_a_batch_job_counts_as_a_start() -> None:
    (pod,) = recorded("out_of_memory_batch").pods
    assert (pod.restarts, pod.exit_code) == (2, 137)


def test_what_a_queue_took_back_is_no_restart() -> None:
    state = recorded("resumed")
    assert state.phase is Phase.RUNNING
    assert [(pod.phase, pod.restarts, pod.cause) for pod in state.pods] == [(Phase.RUNNING, 0, "")]


def job(*conditions: str, kind: str = "PyTorchJob", **spec: Any) -> dict[str, Any]:
    """Conditions as type=status."""
    made = [dict(zip(("type", "status"), each.split("="), strict=True), message="m") for each in conditions]
    specs = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}, **spec}
    metadata = {"name": "j", "uid": "job", "labels": {}}
    return {"kind": kind, "metadata": metadata, "spec": specs, "status": {"conditions": made}}


def pod(uid: str = "pod", second: int = 0, deleted: bool = False, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "j-worker-0",
            "uid": uid,
            "creationTimestamp": f"2026-11-22T00:00:{second:02}Z",
            "labels": {"training.kubeflow.org/replica-type": "worker", "training.kubeflow.org/replica-index": "0"},
            "ownerReferences": [{"uid": "job"}],
        },
        "spec": {"containers": [{"name": "pytorch"}]},
        "status": {"phase": "Running", **status},
        **({"deleted": True} if deleted else {}),
    }


def ended(code: int, reason: str = "Error", second: int = 30) -> dict[str, Any]:
    end = {"exitCode": code, "reason": reason, "finishedAt": f"2026-11-22T00:00:{second:02}Z"}
    return {"containerStatuses": [{"name": "pytorch", "state": {"terminated": end}}]}


def the_pod(*pods: dict[str, Any]) -> PodState:
    (found,) = job_state(JobKind.PYTORCH_JOB, job("Running=True"), pods).pods
    return found


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        ([], Phase.PENDING),
        (["Created=True"], Phase.PENDING),
        (["Created=True", "Running=True"], Phase.RUNNING),
        (["Running=False", "Restarting=True"], Phase.RUNNING),
        (["Running=False", "Suspended=True"], Phase.SUSPENDED),
        (["Suspended=False", "Running=True"], Phase.RUNNING),
        (["Running=False", "Succeeded=True"], Phase.SUCCEEDED),
        (["Succeeded=True", "Failed=True"], Phase.FAILED),
        (["Failed=True", "Succeeded=True"], Phase.FAILED),
        (["Failed=False", "Succeeded=True"], Phase.SUCCEEDED),
        (["FailureTarget=True"], Phase.RUNNING),
        (["FailureTarget=True", "Failed=True"], Phase.FAILED),
        (["SuccessCriteriaMet=True", "Complete=True"], Phase.SUCCEEDED),
    ],
)
def test_a_jobs_conditions(conditions: list[str], phase: Phase) -> None:
    assert job_state(JobKind.PYTORCH_JOB, job(*conditions), []).phase is phase


def test_the_pods_of_another_job_of_the_same_name_are_not_its_own() -> None:
    other = pod()
    other["metadata"]["ownerReferences"] = [{"uid": "an earlier job"}]
    assert job_state(JobKind.PYTORCH_JOB, job("Running=True"), [other]).pods == ()


def test_of_two_pods_of_the_same_second_the_deleted_one_is_the_older() -> None:
    for uids in (("a", "b"), ("b", "a")):
        lost, present = pod(uids[0], deleted=True), pod(uids[1])
        assert the_pod(present, lost).phase is Phase.RUNNING


def test_a_pod_deleted_before_it_ended_has_failed() -> None:
    assert the_pod(pod(deleted=True)).phase is Phase.FAILED
    assert the_pod(pod(deleted=True, phase="Succeeded", **ended(0))).phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("policy", "code", "phase"),
    [
        ("Never", 0, Phase.SUCCEEDED),
        ("Never", 3, Phase.FAILED),
        ("OnFailure", 0, Phase.SUCCEEDED),
        ("OnFailure", 3, Phase.RUNNING),
    ],
)
def test_a_container_that_starts_no_more_has_ended_its_pod(policy: str, code: int, phase: Phase) -> None:
    ending = pod(**ended(code))
    ending["spec"]["restartPolicy"] = policy
    assert the_pod(ending).phase is phase


def test_a_pod_that_succeeded_has_no_cause_left_of_those_before_it() -> None:
    before = pod("a", deleted=True, phase="Failed", reason="Evicted", message="low on memory")
    after = pod("b", second=9, phase="Succeeded", **ended(0))
    found = the_pod(before, after)
    assert (found.phase, found.cause, found.exit_code, found.restarts) == (Phase.SUCCEEDED, "", 0, 1)


def test_the_newest_end_counts_whichever_pods_it_is() -> None:
    evicted = pod("a", deleted=True, phase="Failed", reason="Evicted", message="low on memory", **ended(137, second=5))
    running = pod("b", second=9)
    assert the_pod(evicted, running).cause == "was evicted: low on memory"
    end = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-22T00:00:30Z"}
    running["status"]["containerStatuses"] = [{"name": "pytorch", "restartCount": 1, "lastState": {"terminated": end}}]
    found = the_pod(evicted, running)
    assert found.cause.startswith("ran out of memory:")
    assert (found.restarts, found.finished) == (2, 1795305630.0)


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"reason": "Evicted", "message": "The node was low on memory."}, "was evicted: The node was low on memory"),
        ({"reason": "OutOfnvidia.com/gpu"}, "was rejected by its node, which has too little nvidia.com/gpu left"),
        ({"reason": "NodeLost"}, "was lost with its node"),
        ({"reason": "UnexpectedAdmissionError", "message": "no device"}, "was rejected by its node: no device"),
        ({"message": "something new"}, "failed: something new"),
        (ended(128, "StartError"), "could not be started"),
        (ended(3), ""),
    ],
)
def test_the_cause_of_a_failed_pod(status: dict[str, Any], cause: str) -> None:
    assert the_pod(pod(phase="Failed", **status)).cause == cause


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("PreemptionByScheduler", "was preempted by pods of a higher priority: m"),
        ("DeletionByTaintManager", "was deleted because of a taint on its node, for example an unreachable node's: m"),
        ("DeletionByPodGC", "was lost with its node: m"),
        ("TerminationByKubelet", "was terminated by its node: m"),
        ("SomethingNew", "was disrupted: m"),
    ],
)
def test_a_disruption_is_the_cause_and_tells_when(reason: str, cause: str) -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m."}
    disruption["lastTransitionTime"] = "2026-11-22T00:00:20Z"
    found = the_pod(pod(deleted=True, conditions=[disruption]))
    assert (found.cause, found.finished) == (cause, 1795305620.0)


DRAINED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


@pytest.mark.parametrize(
    ("pods", "taken"),
    [
        ([pod(conditions=[DRAINED])], True),
        ([pod(phase="Failed", reason="NodeShutdown")], True),
        ([pod(phase="Failed", reason="OutOfcpu")], True),
        ([pod(phase="Failed", reason="DeadlineExceeded")], False),
        ([pod(phase="Failed", **ended(137, "OOMKilled"))], False),
        ([pod(phase="Failed", **ended(143))], False),
        ([pod(phase="Succeeded", conditions=[DRAINED], **ended(0))], False),
        ([pod("a", deleted=True, conditions=[DRAINED]), pod("b", second=9)], False),  # it was replaced
    ],
)
def test_a_pod_that_the_cluster_took_is_told_from_one_that_failed(pods: list[dict[str, Any]], taken: bool) -> None:
    assert the_pod(*pods).was_disrupted is taken


def test_a_pod_that_is_asked_to_end_has_a_cause_and_no_end_yet() -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    disruption["lastTransitionTime"] = "2026-11-22T00:00:20Z"
    evicted = pod(conditions=[disruption])
    evicted["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:50Z"
    found = the_pod(evicted)
    assert (found.phase, found.cause != "", found.finished) == (Phase.RUNNING, True, 0.0)
    evicted["status"] |= ended(143)
    evicted["spec"]["restartPolicy"] = "OnFailure"
    assert the_pod(evicted).phase is Phase.FAILED, "its container starts no more"


def test_a_pod_that_succeeded_in_its_grace_has_no_cause() -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    done = pod(phase="Succeeded", conditions=[disruption], **ended(0))
    assert the_pod(done).cause == ""
    assert the_pod({**done, "deleted": True}, pod("b", second=9)).cause.startswith("was evicted"), (
        "or it would be there"
    )


def event(message: str, second: int, uid: str = "job", reason: str = "FailedCreatePod") -> dict[str, Any]:
    when = f"2026-11-22T00:00:{second:02}Z"
    return {"reason": reason, "message": message, "lastTimestamp": when, "involvedObject": {"uid": uid}}


REFUSAL = 'Error creating: pods "j-worker-1" is forbidden: exceeded quota: q'


@pytest.mark.parametrize(("pod_created", "kinds"), [(5, [TroubleKind.QUOTA]), (15, [])])
def test_a_refusal_is_of_the_past_once_a_pod_was_created_after_it(pod_created: int, kinds: list[TroubleKind]) -> None:
    state = job_state(JobKind.PYTORCH_JOB, job(), [pod(second=pod_created)], [event(REFUSAL, 10)])
    assert [trouble.kind for trouble in state.troubles] == kinds


def test_of_several_refusals_the_last_counts() -> None:
    refusals = [event(REFUSAL.replace("worker-1", f"worker-{second}"), second) for second in (12, 10, 11)]
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job(), [], refusals).troubles
    assert "worker-12" in trouble.evidence


@pytest.mark.parametrize(
    "other",
    [
        event(REFUSAL, 10, uid="another job"),
        event('Error creating: pods "j-worker-0" already exists', 10),
        event(
            "Error pod j-worker-0 container pytorch waiting message: 403 Forbidden: no token", 10, reason="ErrImagePull"
        ),
        event("MountVolume.SetUp failed", 10, uid="pod", reason="FailedMount"),
    ],
)
def test_warnings_that_are_no_trouble_of_a_running_job(other: dict[str, Any]) -> None:
    assert job_state(JobKind.PYTORCH_JOB, job(), [pod()], [other]).troubles == ()


def test_volcano_creates_no_pod_before_its_queue_lets_them_in() -> None:
    waiting = job(runPolicy={"schedulingPolicy": {"queue": "research"}})
    (trouble,) = job_state(JobKind.PYTORCH_JOB, waiting, []).troubles
    assert (trouble.kind, trouble.subject) == (TroubleKind.QUEUE, "the job")
    assert trouble.evidence == "Volcano's queue research"
    assert job_state(JobKind.PYTORCH_JOB, waiting, [pod()]).troubles == ()


@pytest.mark.parametrize(
    ("policy", "queues"),
    [
        ({"minAvailable": 2}, ["Volcano's queue default"]),
        ({"minAvailable": 2, "scheduleTimeoutSeconds": 60}, []),
    ],
    ids=["volcano", "scheduler-plugins"],
)
def test_volcano_has_a_default_queue_and_scheduler_plugins_none(policy: dict[str, Any], queues: list[str]) -> None:
    state = job_state(JobKind.PYTORCH_JOB, job(runPolicy={"schedulingPolicy": policy}), [])
    assert [trouble.evidence for trouble in state.troubles] == queues


@pytest.mark.parametrize("name", ["pytorchjob-j-12345", "job-j-12345", "pytorchjob-j-a2-12345"])
def test_why_a_queue_admits_another_job_not_is_no_matter(name: str) -> None:
    waiting = job(runPolicy={"suspend": True})
    waiting["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    other = {**event("no quota", 10, reason="Pending"), "type": "Warning"}
    other["involvedObject"] = {"kind": "Workload", "name": name}
    (trouble,) = job_state(JobKind.PYTORCH_JOB, waiting, [], [other]).troubles
    is_ours = name == "pytorchjob-j-12345"
    assert ("no quota" in trouble.evidence) is is_ours
    assert trouble.subject == ("the job's Workload" if is_ours else "the job"), "the reason is a new trouble"


def test_a_pod_behind_a_gate_waits_in_a_queue() -> None:
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job(), [pod(phase="Pending", conditions=[gate])]).troubles
    assert trouble.kind is TroubleKind.QUEUE


def test_what_is_over_has_no_troubles() -> None:
    over = job_state(JobKind.PYTORCH_JOB, job("Failed=True"), [], [event(REFUSAL, 10)])
    assert (over.troubles, over.message) == ((), "m")
