"""Job states derived from manifests: recorded on a real cluster (recorded/), or written here for rare states."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobState, Phase, PodState
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import describe
from kubetrain_trainer.termination import parse_termination_message

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> JobState:
    seen = yaml.safe_load((RECORDED / f"{name}.yaml").read_text())
    return job_state(JobKind(seen["job"]["kind"]), seen["job"], seen["pods"], seen.get("events", []))


@pytest.mark.parametrize(
    ("name", "kind", "subject", "evidence"),
    [
        ("unschedulable", TroubleKind.UNSCHEDULABLE, "worker-0", "0/1 nodes are available: 1 Insufficient nvidia.com"),
        ("image_pull", TroubleKind.IMAGE_PULL, "worker-0", "registry.invalid/no/such:1: Back-off pulling image"),
        ("image_name", TroubleKind.BAD_IMAGE_NAME, "worker-0", "Upper/Case:1: Failed to apply default image tag"),
        ("missing_secret", TroubleKind.CONFIGURATION, "worker-0", 'secret "nope" not found'),
        ("crash_loop", TroubleKind.CRASH_LOOP, "worker-0", "back-off 40s restarting failed container"),
        ("missing_secret_volume", TroubleKind.VOLUME, "worker-0", 'volume "s" : secret "nope" not found'),
        ("missing_claim", TroubleKind.VOLUME, "worker-0", 'persistentvolumeclaim "nope" not found'),
        ("invalid_pod", TroubleKind.REFUSED, "the job", '"2": must be less than or equal to cpu limit of 1'),
        (
            "init_container_refused",
            TroubleKind.INIT_CONTAINER,
            "the job",
            'Escalation != false (container "init-pytorch"',
        ),
        ("pod_security", TroubleKind.POD_SECURITY, "the job", 'violates PodSecurity "restricted:latest": host names'),
        ("quota", TroubleKind.QUOTA, "the job", "exceeded quota: q, requested: cpu=50m, used: cpu=0"),
        ("quota_without_limits", TroubleKind.REFUSED, "the job", "failed quota: q: must specify limits.cpu"),
        ("denied", TroubleKind.REFUSED, "the job", "denied request: every pod names its team"),
        ("webhook_fails", TroubleKind.NOT_CREATED, "the job", 'failed calling webhook "pods.manifests.test"'),
        ("suspended", TroubleKind.QUEUE, "the job", "Kueue's queue q"),
        ("suspended_batch", TroubleKind.QUEUE, "the job", "Kueue's queue q"),
        (
            "kueue_not_admitted",
            TroubleKind.NEVER_ADMITTED,
            "the job's Workload",
            "queue research: couldn't assign flavors to pod",
        ),
        (
            "kueue_preempted_batch",
            TroubleKind.QUEUE,
            "the job's Workload",
            "insufficient unused quota for cpu in flavor",
        ),
        (
            "volcano_not_admitted",
            TroubleKind.QUEUE,
            "the job's PodGroup",
            "Volcano's queue q-small: queue resource quota",
        ),
    ],
)
def test_a_trouble_is_recognized_with_its_evidence(name: str, kind: TroubleKind, subject: str, evidence: str) -> None:
    state = recorded(name)
    assert [(trouble.kind, trouble.subject) for trouble in state.troubles] == [(kind, subject)]
    assert evidence in state.troubles[0].evidence
    assert not state.is_under_way or kind is TroubleKind.CRASH_LOOP


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("out_of_memory", r"worker-0 .* out of memory .*64Mi.* train\.batch_size .*\(after 3 restarts\)"),
        ("crash_loop", r"worker-0 .* code 3 \(after 3 restarts\)"),
        ("own_words", r"worker-0: no data \(after 4 restarts\)"),
        ("deleted_by_force", r"worker-0 was deleted .*\(after a restart\)"),
        ("evicted_by_api", r"worker-0 was evicted.*: Eviction API: evicting \(after a restart\)"),
        ("evicted_for_storage", r"worker-0 was evicted: Pod ephemeral local storage usage .* 10Mi \(after a restart\)"),
        (
            "preempted",
            r"transfer-0 was preempted .*: default-scheduler: preempting to accommodate a higher priority pod",
        ),
        ("failed_tensorflow", r"worker-0 .* code 3"),
        ("init_container_failed", r"worker-0 did not start: .* init-pytorch .* code 1"),
    ],
)
def test_why_a_pod_ended(name: str, description: str) -> None:
    (found,) = [describe(pod) for pod in recorded(name).pods if pod.exit_code or pod.cause]
    assert re.fullmatch(description, found)


def test_a_pod_that_failed_because_of_another_container_names_it() -> None:
    ends = [{"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in [("pytorch", 0), ("up", 3)]]
    seen = the_pod(pod(phase="Failed", containerStatuses=ends))
    assert describe(seen) == "worker-0 failed: its container up exited with code 3"


def test_running_pods_on_a_node_that_does_not_respond_are_in_trouble() -> None:
    state = recorded("node_lost")
    assert [(trouble.kind, trouble.subject, trouble.evidence) for trouble in state.troubles] == [
        (TroubleKind.NODE, "master-0", "node2"),
        (TroubleKind.NODE, "worker-0", "node2"),
    ]
    assert not state.is_under_way, "they are not replaced until the node is deleted"


def test_a_pod_that_its_own_node_marks_unready_is_running() -> None:
    unready = {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}
    state = job_state(JobKind.PYTORCH_JOB, job("Running=True"), [pod(conditions=[unready])])
    assert (state.is_under_way, state.troubles) == (True, ())


def test_a_restart_of_a_sidecar_is_not_why_a_pod_failed() -> None:
    killed = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-22T00:00:10Z"}
    sidecar = {"name": "cache", "state": {"running": {}}, "lastState": {"terminated": killed}}
    failed = pod(phase="Failed", message="The node was low on resources.", initContainerStatuses=[sidecar])
    failed["spec"]["initContainers"] = [{"name": "cache", "restartPolicy": "Always"}]
    assert (the_pod(failed).cause, the_pod(failed).finished) == ("failed: The node was low on resources", 0)


def test_a_pod_ended_when_its_init_container_failed() -> None:
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
def test_the_phases_of_a_job_and_its_pods(name: str, phase: Phase, pods: list[str]) -> None:
    state = recorded(name)
    assert (state.phase, [f"{pod.name} {pod.phase}" for pod in state.pods]) == (phase, pods)


def test_a_job_with_a_rejected_worker_is_not_under_way_even_if_its_master_runs() -> None:
    state = recorded("init_container_refused")
    assert state.needed == 2
    assert not state.is_under_way


def test_earlier_pods_of_a_batch_job_count_as_restarts() -> None:
    (pod,) = recorded("out_of_memory_batch").pods
    assert (pod.restarts, pod.exit_code) == (2, 137)


def test_an_eviction_by_a_queue_is_not_a_restart() -> None:
    state = recorded("resumed")
    assert state.phase is Phase.RUNNING
    assert [(pod.phase, pod.restarts, pod.cause) for pod in state.pods] == [(Phase.RUNNING, 0, "")]


def job(*conditions: str, kind: str = "PyTorchJob", **spec: Any) -> dict[str, Any]:
    """Return a job with these conditions, given as type=status."""
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
def test_conditions_determine_the_phase_of_a_job(conditions: list[str], phase: Phase) -> None:
    assert job_state(JobKind.PYTORCH_JOB, job(*conditions), []).phase is phase


def test_the_image_is_that_of_the_training_container() -> None:
    own = {"name": "pytorch", "imageID": "sha256:2", "state": {"running": {}}}
    injected = {"name": "istio-proxy", "imageID": "sha256:1", "state": {"running": {}}}
    pods = [pod(containerStatuses=[injected, own])]
    assert job_state(JobKind.PYTORCH_JOB, job("Running=True"), pods).image_id == "sha256:2"
    assert job_state(JobKind.PYTORCH_JOB, job("Running=True"), [pod()]).image_id == ""


def test_pods_of_another_job_of_the_same_name_are_ignored() -> None:
    other = pod()
    other["metadata"]["ownerReferences"] = [{"uid": "an earlier job"}]
    assert job_state(JobKind.PYTORCH_JOB, job("Running=True"), [other]).pods == ()


def indexed(uid: str, index: int, instance: str = "0a", second: int = 0, **status: Any) -> dict[str, Any]:
    """Return a pod that Kubernetes numbers, whose owner is not the TrainJob but an object of it."""
    return {
        "metadata": {
            "name": f"j-node-0-{index}-{uid}",
            "uid": uid,
            "creationTimestamp": f"2026-11-22T00:00:{second:02}Z",
            "labels": {"kubetrain/role": "worker", "kubetrain/instance": instance},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            "ownerReferences": [{"uid": "its Job"}],
        },
        "spec": {"containers": [{"name": "node"}], "restartPolicy": "Never"},
        "status": {"phase": "Running", **status},
    }


def train_job(*conditions: str, needed: int = 2, **spec: Any) -> dict[str, Any]:
    made = job(*conditions, kind="TrainJob", **{"trainer": {"numNodes": 3}, **spec})
    made["metadata"] |= {
        "labels": {"kubetrain/instance": "0a"},
        "annotations": {"kubetrain/needed-pods": str(needed)},
    }
    return made


def test_a_training_without_the_training_operator_has_the_pods_of_its_own_creation() -> None:
    pods = [indexed("a", 0), indexed("b", 12), indexed("c", 0, instance="ff")]
    state = job_state(JobKind.TRAIN_JOB, train_job(), pods)
    assert [(each.name, each.role, each.index) for each in state.pods] == [
        ("worker-0", "Worker", 0),
        ("worker-12", "Worker", 12),
    ]
    unlabeled = job_state(JobKind.BATCH_JOB, job(kind="Job"), pods)
    assert unlabeled.pods == (), "a job without an instance has the pods that it owns"


def test_a_replaced_pod_of_an_index_is_a_restart() -> None:
    failed = {"containerStatuses": [{"name": "node", "state": {"terminated": {"exitCode": 3}}}]}
    pods = [indexed("a", 1, phase="Failed", **failed), indexed("b", 1, second=9)]
    (worker,) = job_state(JobKind.TRAIN_JOB, train_job(), pods).pods
    assert (worker.name, worker.phase, worker.restarts, worker.exit_code) == ("worker-1", Phase.RUNNING, 1, 3)


def test_such_a_training_is_under_way_with_the_pods_that_its_annotation_asks_for() -> None:
    one, two = [indexed("a", 0)], [indexed("a", 0), indexed("b", 1)]
    assert job_state(JobKind.TRAIN_JOB, train_job(needed=2), two).is_under_way
    assert not job_state(JobKind.TRAIN_JOB, train_job(needed=2), one).is_under_way
    assert not job_state(JobKind.TRAIN_JOB, train_job(needed=3), two).is_under_way
    unknown = train_job()
    unknown["metadata"]["annotations"] = {}
    assert job_state(JobKind.TRAIN_JOB, unknown, two).needed == 3
    assert job_state(JobKind.BATCH_JOB, {**unknown, "spec": {"completions": 5}}, two).needed == 5
    assert job_state(JobKind.BATCH_JOB, {**unknown, "spec": {}}, two).needed == 1


@pytest.mark.parametrize(
    ("conditions", "status", "phase"),
    [
        ([], {}, Phase.PENDING),
        ([], {"jobsStatus": [{"name": "node", "active": 0}]}, Phase.PENDING),
        ([], {"jobsStatus": [{"name": "node", "active": 1}]}, Phase.RUNNING),
        (["Suspended=True"], {}, Phase.SUSPENDED),
        (["Suspended=False"], {"jobsStatus": [{"name": "node", "active": 1}]}, Phase.RUNNING),
        (["Complete=True"], {"jobsStatus": [{"name": "node", "active": 0, "succeeded": 1}]}, Phase.SUCCEEDED),
        (["Failed=True"], {"jobsStatus": [{"name": "node", "active": 0, "failed": 1}]}, Phase.FAILED),
    ],
)
def test_the_phase_of_a_train_job(conditions: list[str], status: dict[str, Any], phase: Phase) -> None:
    seen = train_job(*conditions)
    seen["status"] |= status
    state = job_state(JobKind.TRAIN_JOB, seen, [])
    assert state.phase is phase
    assert bool(state.message) is (phase.is_final or phase is Phase.SUSPENDED)


def test_a_train_job_that_kueue_has_not_admitted_is_suspended() -> None:
    assert job_state(JobKind.TRAIN_JOB, train_job(suspend=True), []).phase is Phase.SUSPENDED


def test_if_two_pods_have_the_same_creation_time_the_deleted_one_is_older() -> None:
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
def test_a_pod_has_ended_if_its_container_will_not_restart(policy: str, code: int, phase: Phase) -> None:
    ending = pod(**ended(code))
    ending["spec"]["restartPolicy"] = policy
    assert the_pod(ending).phase is phase


def test_a_pod_that_succeeded_has_no_cause_from_earlier_pods() -> None:
    before = pod("a", deleted=True, phase="Failed", reason="Evicted", message="low on memory")
    after = pod("b", second=9, phase="Succeeded", **ended(0))
    found = the_pod(before, after)
    assert (found.phase, found.cause, found.exit_code, found.restarts) == (Phase.SUCCEEDED, "", 0, 1)


def test_the_newest_end_counts_even_if_it_is_an_earlier_pods() -> None:
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
        ({"reason": "OutOfnvidia.com/gpu"}, "was rejected .* nvidia.com/gpu .*"),
        ({"reason": "NodeLost"}, "was lost .* node"),
        ({"reason": "UnexpectedAdmissionError", "message": "no device"}, "was rejected .*: no device"),
        ({"message": "something new"}, "failed: something new"),
        (ended(128, "StartError"), "could not be started"),
        (ended(3), ""),
    ],
)
def test_the_cause_of_a_failed_pod(status: dict[str, Any], cause: str) -> None:
    assert re.fullmatch(cause, the_pod(pod(phase="Failed", **status)).cause)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("PreemptionByScheduler", "was preempted .*: m"),
        ("DeletionByTaintManager", "was deleted .* taint .*: m"),
        ("DeletionByPodGC", "was lost .* node: m"),
        ("TerminationByKubelet", "was terminated .* node: m"),
        ("SomethingNew", "was disrupted: m"),
    ],
)
def test_a_disruption_is_the_cause_and_gives_the_time(reason: str, cause: str) -> None:
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m."}
    disruption["lastTransitionTime"] = "2026-11-22T00:00:20Z"
    found = the_pod(pod(deleted=True, conditions=[disruption]))
    assert re.fullmatch(cause, found.cause)
    assert found.finished == 1795305620.0


EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


@pytest.mark.parametrize(
    ("pods", "is_disrupted"),
    [
        ([pod(conditions=[EVICTED])], True),
        ([pod(phase="Failed", reason="NodeShutdown")], True),
        ([pod(phase="Failed", reason="OutOfcpu")], True),
        ([pod(phase="Failed", reason="DeadlineExceeded")], False),
        ([pod(phase="Failed", **ended(137, "OOMKilled"))], False),
        ([pod(phase="Failed", **ended(143))], False),
        ([pod(phase="Succeeded", conditions=[EVICTED], **ended(0))], False),
        ([pod("a", deleted=True, conditions=[EVICTED]), pod("b", second=9)], False),  # it was replaced
    ],
)
def test_a_disrupted_pod_is_told_from_one_that_failed(pods: list[dict[str, Any]], is_disrupted: bool) -> None:
    assert the_pod(*pods).was_disrupted is is_disrupted


@pytest.mark.parametrize(
    ("status", "deletion", "was_deleted"),
    [
        ({"deleted": True}, {}, True),  # by force
        ({"phase": "Failed", **ended(143, second=30)}, {"second": 25, "grace": 5}, True),
        ({"phase": "Failed", **ended(1, second=19)}, {"second": 25, "grace": 5}, False),
        ({"phase": "Failed", **ended(143)}, {}, False),
        ({"deleted": True, "phase": "Failed", **ended(1)}, {}, False),
        ({}, {"second": 25, "grace": 5}, True),  # it still runs
        ({"phase": "Failed"}, {"second": 25, "grace": 5}, False),
    ],
)
def test_a_deleted_pod_is_told_from_one_that_had_failed(
    status: dict[str, Any], deletion: dict[str, int], was_deleted: bool
) -> None:
    found = pod(**status)
    if deletion:
        found["metadata"]["deletionTimestamp"] = f"2026-11-22T00:00:{deletion['second']}Z"
        found["metadata"]["deletionGracePeriodSeconds"] = deletion["grace"]
    assert the_pod(found).was_deleted is was_deleted


def test_a_pod_that_is_being_deleted_has_a_cause_but_no_end_yet() -> None:
    evicted = pod(conditions=[{**EVICTED, "lastTransitionTime": "2026-11-22T00:00:20Z"}])
    evicted["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:50Z"
    found = the_pod(evicted)
    assert (found.phase, found.cause != "", found.finished) == (Phase.RUNNING, True, 0.0)
    evicted["status"] |= ended(143)
    evicted["spec"]["restartPolicy"] = "OnFailure"
    assert the_pod(evicted).phase is Phase.FAILED, "its container will not restart"


def test_a_pod_that_succeeded_in_its_grace_period_has_no_cause() -> None:
    done = pod(phase="Succeeded", conditions=[EVICTED], **ended(0))
    assert the_pod(done).cause == ""
    assert the_pod({**done, "deleted": True}, pod("b", second=9)).cause.startswith("was evicted"), (
        "it was replaced, so it did not succeed"
    )


def event(message: str, second: int, uid: str = "job", reason: str = "FailedCreatePod") -> dict[str, Any]:
    when = f"2026-11-22T00:00:{second:02}Z"
    return {"reason": reason, "message": message, "lastTimestamp": when, "involvedObject": {"uid": uid}}


REJECTION = 'Error creating: pods "j-worker-1" is forbidden: exceeded quota: q'


@pytest.mark.parametrize("beginning", ["Error creating", "launcher pod created failed", "worker pod created failed"])
def test_a_rejection_is_known_by_the_words_of_each_controller(beginning: str) -> None:
    rejected = event(REJECTION.replace("Error creating", beginning), 10)
    (trouble,) = job_state(JobKind.MPI_JOB, job(), [], [rejected]).troubles
    assert trouble.kind is TroubleKind.QUOTA


@pytest.mark.parametrize(("pod_created", "kinds"), [(5, [TroubleKind.QUOTA]), (15, [])])
def test_a_rejection_is_ignored_once_a_pod_was_created_after_it(pod_created: int, kinds: list[TroubleKind]) -> None:
    state = job_state(JobKind.PYTORCH_JOB, job(), [pod(second=pod_created)], [event(REJECTION, 10)])
    assert [trouble.kind for trouble in state.troubles] == kinds


def test_the_last_of_several_rejections_counts() -> None:
    rejections = [event(REJECTION.replace("worker-1", f"worker-{second}"), second) for second in (12, 10, 11)]
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job(), [], rejections).troubles
    assert "worker-12" in trouble.evidence


@pytest.mark.parametrize(
    "other",
    [
        event(REJECTION, 10, uid="another job"),
        event('Error creating: pods "j-worker-0" already exists', 10),
        event(
            "Error pod j-worker-0 container pytorch waiting message: 403 Forbidden: no token", 10, reason="ErrImagePull"
        ),
        event("MountVolume.SetUp failed", 10, uid="pod", reason="FailedMount"),
    ],
)
def test_warnings_that_do_not_concern_a_running_job_are_ignored(other: dict[str, Any]) -> None:
    assert job_state(JobKind.PYTORCH_JOB, job(), [pod()], [other]).troubles == ()


OTHERS = ["digits-sync-dataset-ab12-0123abcd-x7k2p", "flowers-launch-training-run-94d812ac-a2-worker-1"]


@pytest.mark.parametrize(
    ("users", "kind"),
    [
        (f"pod(s) {OTHERS[0]}", TroubleKind.VOLUME_IN_USE),
        (f"pod(s) {', '.join(OTHERS)}", TroubleKind.VOLUME_IN_USE),
        (f"pod(s) notebook-0, {OTHERS[0]}", TroubleKind.VOLUME),
        ("pod(s) web-7d4b9c6f58-x7k2p", TroubleKind.VOLUME),
        (f"pod(s) {OTHERS[0]} and 1 pod(s) in different namespaces", TroubleKind.VOLUME),
        ("1 pod(s) in different namespaces", TroubleKind.VOLUME),
        ("pod(s) mine-sync-dataset-ab12-0123abcd-q9z8y", TroubleKind.VOLUME),
    ],
)
def test_a_volume_that_other_runs_use_is_waited_for(users: str, kind: TroubleKind) -> None:
    message = f'Multi-Attach error for volume "pvc-1" Volume is already used by {users}'
    mine = pod(phase="Pending")
    mine["metadata"]["name"] = "mine-sync-dataset-ab12-0123abcd-x7k2p"
    attach = event(message, 10, uid=mine["metadata"]["uid"], reason="FailedAttachVolume")
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job(), [mine], [attach]).troubles
    assert (trouble.kind, users in trouble.evidence) == (kind, True)


def test_no_pods_are_created_until_volcanos_queue_admits_them() -> None:
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
def test_volcano_has_a_default_queue_but_scheduler_plugins_has_none(policy: dict[str, Any], queues: list[str]) -> None:
    state = job_state(JobKind.PYTORCH_JOB, job("Created=True", runPolicy={"schedulingPolicy": policy}), [])
    assert [trouble.evidence for trouble in state.troubles] == queues


@pytest.mark.parametrize("name", ["pytorchjob-j-12345", "job-j-12345", "pytorchjob-j-a2-12345"])
def test_events_about_another_job_in_the_queue_are_ignored(name: str) -> None:
    waiting = job(runPolicy={"suspend": True})
    waiting["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    other = {**event("no quota", 10, reason="Pending"), "type": "Warning"}
    other["involvedObject"] = {"kind": "Workload", "name": name}
    (trouble,) = job_state(JobKind.PYTORCH_JOB, waiting, [], [other]).troubles
    is_ours = name == "pytorchjob-j-12345"
    assert ("no quota" in trouble.evidence) is is_ours
    assert trouble.subject == ("the job's Workload" if is_ours else "the job"), (
        "the reason is reported as a new trouble"
    )


def waiting_in_queue() -> dict[str, Any]:
    waiting = job(runPolicy={"suspend": True})
    waiting["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    return waiting


@pytest.mark.parametrize(
    ("message", "is_hopeless"),
    [
        (
            "insufficient quota for cpu in flavor a, (0) + current podset request (8) > maximum capacity (4)",
            True,
        ),
        ("resource nvidia.com/gpu unavailable in ClusterQueue", True),
        ("flavor a doesn't match node affinity, untolerated taint {gpu yes NoSchedule <nil>} in flavor b", True),
        ("Workload namespace doesn't match ClusterQueue selector", True),
        ("insufficient unused quota for cpu in flavor a, 2 more needed", False),
        ("request > maximum capacity (4), insufficient unused quota for cpu in flavor b, 2 more needed", False),
        ("untolerated taint {gpu yes} in flavor a. Pending the preemption of 1 workload(s)", False),
        ("ClusterQueue research is inactive", False),
        (
            "insufficient quota for cpu in flavor a, (0) + podset request (8) > maximum capacity (4), insuf ...",
            False,
        ),
    ],
)
def test_a_queue_that_has_room_for_the_job_only_in_theory_or_never(message: str, is_hopeless: bool) -> None:
    pending = {**event(message, 10, reason="ExceedsMaxQuota"), "type": "Warning"}
    pending["involvedObject"] = {"kind": "Workload", "name": "pytorchjob-j-12345"}
    (trouble,) = job_state(JobKind.PYTORCH_JOB, waiting_in_queue(), [], [pending]).troubles
    assert trouble.kind is (TroubleKind.NEVER_ADMITTED if is_hopeless else TroubleKind.QUEUE)


def explained(message: str, at: int) -> dict[str, Any]:
    concerned = {"kind": "Workload", "name": "pytorchjob-j-12345"}
    return {**event(message, at, reason="Pending"), "type": "Warning", "involvedObject": concerned}


def test_kueue_may_explain_other_flavors_each_time() -> None:
    events = [explained("insufficient unused quota for cpu, 2 more needed", 10), explained("untolerated taint", 20)]
    (trouble,) = job_state(JobKind.PYTORCH_JOB, waiting_in_queue(), [], events).troubles
    assert (trouble.kind, "untolerated taint" in trouble.evidence) == (TroubleKind.QUEUE, True)


def test_events_about_an_earlier_job_of_the_same_name_are_ignored() -> None:
    waiting = waiting_in_queue()
    waiting["metadata"]["creationTimestamp"] = "2026-11-22T00:00:15Z"
    events = [explained("resource cpu unavailable in ClusterQueue", 10)]
    (trouble,) = job_state(JobKind.PYTORCH_JOB, waiting, [], events).troubles
    assert (trouble.kind, trouble.subject) == (TroubleKind.QUEUE, "the job")


def local_queue(active: str, reason: str = "Ready", pending: int = 0, reserving: int = 3) -> dict[str, Any]:
    conditions = [{"type": "Active", "status": active, "reason": reason}]
    numbers = {"pendingWorkloads": pending, "reservingWorkloads": reserving, "admittedWorkloads": 3}
    return {"spec": {"clusterQueue": "all"}, "status": {"conditions": conditions, **numbers}}


@pytest.mark.parametrize(
    ("queues", "problem"),
    [
        ([], "it does not exist in this namespace"),
        ([local_queue("False", "ClusterQueueDoesNotExist")], "its ClusterQueue 'all' does not exist"),
        ([local_queue("True")], "no job is pending in it, so Kueue may not manage PyTorchJobs"),
        ([local_queue("True", pending=1)], ""),
        ([local_queue("True", reserving=4)], ""),
        (
            [{"status": local_queue("False", "ClusterQueueDoesNotExist")["status"]}],
            "its ClusterQueue '' does not exist",
        ),
        ([local_queue("False", "Stopped")], ""),
        ([local_queue("False", "ClusterQueueIsInactive")], ""),
        ([{"spec": {"clusterQueue": "all"}}], ""),
        (None, ""),
    ],
)
def test_a_queue_that_does_not_know_the_job_never_admits_it(queues: list[dict[str, Any]] | None, problem: str) -> None:
    (trouble,) = job_state(JobKind.PYTORCH_JOB, waiting_in_queue(), [], queues=queues).troubles
    assert trouble.kind is (TroubleKind.NEVER_ADMITTED if problem else TroubleKind.QUEUE)
    assert trouble.evidence == (f"Kueue's queue q: {problem}" if problem else "Kueue's queue q")


def test_a_pod_with_a_scheduling_gate_waits_in_a_queue() -> None:
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job(), [pod(phase="Pending", conditions=[gate])]).troubles
    assert trouble.kind is TroubleKind.QUEUE


def test_a_pod_that_no_scheduler_looks_at_names_the_one_that_should() -> None:
    new = pod(phase="Pending")
    new["spec"]["schedulerName"] = "bin-packing"
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job(), [new]).troubles
    assert (trouble.kind, trouble.subject, trouble.evidence) == (TroubleKind.SCHEDULER, "worker-0", "bin-packing")
    new["spec"]["nodeName"] = "node1"
    assert job_state(JobKind.PYTORCH_JOB, job("Created=True"), [new]).troubles == ()


def test_a_job_that_is_over_has_no_troubles() -> None:
    over = job_state(JobKind.PYTORCH_JOB, job("Failed=True"), [], [event(REJECTION, 10)])
    assert (over.troubles, over.message) == ((), "m")


def test_a_job_that_no_operator_has_taken_up_is_in_trouble() -> None:
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job(), []).troubles
    assert (trouble.kind, trouble.subject) == (TroubleKind.OPERATOR, "the job")
    for seen in (job("Created=True"), job("Created=True", kind="Job")):
        assert job_state(JobKind.PYTORCH_JOB, seen, []).troubles == ()
    assert job_state(JobKind.BATCH_JOB, job(kind="Job"), []).troubles == (), "no training operator runs batch Jobs"


def test_a_suspended_job_without_a_queue_says_so() -> None:
    (trouble,) = job_state(JobKind.PYTORCH_JOB, job("Suspended=True", runPolicy={"suspend": True}), []).troubles
    assert trouble.kind is TroubleKind.SUSPENDED


def test_a_job_that_is_being_deleted_names_its_finalizers() -> None:
    deleting = job("Running=True")
    deleting["metadata"] |= {"deletionTimestamp": "2026-11-22T00:00:00Z", "finalizers": ["example.com/a", "b"]}
    (trouble,) = job_state(JobKind.PYTORCH_JOB, deleting, [pod()]).troubles
    assert (trouble.kind, trouble.evidence) == (TroubleKind.DELETING, "example.com/a, b")


@pytest.mark.parametrize(("code", "phase"), [(0, Phase.SUCCEEDED), (3, Phase.FAILED)])
def test_a_container_that_runs_on_after_the_main_one_is_named(code: int, phase: Phase) -> None:
    ending = pod(**ended(code))
    ending["spec"]["restartPolicy"] = "Never"
    ending["status"]["containerStatuses"].append({"name": "vault-agent", "state": {"running": {}}})
    state = job_state(JobKind.PYTORCH_JOB, job("Running=True"), [ending])
    assert (state.pods[0].phase, state.pods[0].lingering, state.is_ending) == (phase, ("vault-agent",), True)
    assert [(each.kind, each.evidence) for each in state.troubles] == [(TroubleKind.LINGERING, "container vault-agent")]
    assert the_pod({**ending, "deleted": True}).lingering == ()


@pytest.mark.parametrize(
    ("pods", "is_lost", "replacements"),
    [
        ([pod()], False, 0),
        ([pod(conditions=[EVICTED])], True, 0),
        ([pod("a", deleted=True, conditions=[EVICTED])], True, 0),
        ([pod("a", deleted=True, conditions=[EVICTED]), pod("b", second=9, phase="Pending")], True, 1),
        ([pod("a", deleted=True, conditions=[EVICTED]), pod("b", second=9)], False, 1),
        ([pod("a", deleted=True, **ended(137)), pod("b", second=9, phase="Pending")], False, 0),
        # A pod may itself have used up the memory or the disk whose lack makes a node evict it.
        ([pod("a", deleted=True, phase="Failed", reason="Evicted"), pod("b", second=9)], False, 0),
        ([pod(conditions=[{"type": "Ready", "status": "False"}])], True, 0),
    ],
)
def test_a_pod_is_lost_while_the_cluster_owes_it_to_the_job(
    pods: list[dict[str, Any]], is_lost: bool, replacements: int
) -> None:
    for each in pods:
        each["spec"]["nodeName"] = "node1"
    found = the_pod(*pods)
    assert (found.is_lost, found.replacements) == (is_lost, replacements)


def test_the_memory_limit_that_is_quoted_is_the_main_containers() -> None:
    killed = pod(**ended(137, "OOMKilled"))
    limited = {"name": "pytorch", "resources": {"limits": {"memory": "64Gi"}}}
    killed["spec"]["containers"] = [{"name": "proxy", "resources": {"limits": {"memory": "128Mi"}}}, limited]
    assert "(limit 64Gi)" in the_pod(killed).cause


def test_a_termination_message_of_brackets_only_is_no_report() -> None:
    assert parse_termination_message("[" * 4096) == {}


def test_the_cost_of_a_state_does_not_grow_with_pods_times_events() -> None:
    pods = [pod(f"pod-{index}") for index in range(300)]
    for index, each in enumerate(pods):
        each["metadata"]["labels"]["training.kubeflow.org/replica-index"] = str(index)
    warnings = [event("0/1 nodes are available", 10, uid=f"pod-{index}") for index in range(1000)]
    reads = 0

    class Counted(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            nonlocal reads
            reads += key == "creationTimestamp"
            return super().__getitem__(key)

    for each in pods:
        each["metadata"] = Counted(each["metadata"])
    job_state(JobKind.PYTORCH_JOB, job("Running=True"), pods, warnings)
    assert reads < 10 * len(pods)
