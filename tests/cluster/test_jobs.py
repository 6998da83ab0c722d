"""Jobs on a real cluster: each ends with the right verdict and a message that names the cause."""

import threading
import time
from datetime import datetime

import pytest

from kubetrain_components.jobs.annotations import FAILURE_ANNOTATION
from kubetrain_components.jobs.budgets import Budgets
from kubetrain_components.jobs.follow import JobNotOurs, run_job
from kubetrain_components.jobs.job import RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import JobFailed
from support.cluster import API_SERVER, FOREVER, SMALL, await_that, pods_job, stop_api_server
from support.following import Heard, await_running, failure_of

pytestmark = [pytest.mark.cluster, pytest.mark.core]

QUICK = "print('one'); print(); print('three')"


@pytest.mark.parametrize("kind", [JobKind.TF_JOB, JobKind.BATCH_JOB])
def test_a_job_succeeds_with_every_line_of_its_pods(backend: KubernetesBackend, kind: JobKind) -> None:
    heard = Heard()
    programs = [QUICK, QUICK] if kind is JobKind.TF_JOB else [QUICK]
    state = run_job(pods_job(*programs, run_id="quick", kind=kind), backend, heard)
    assert state.phase is Phase.SUCCEEDED
    pods = ["chief-0", "worker-0"] if kind is JobKind.TF_JOB else ["transfer-0"]
    assert {pod: heard.of(pod) for pod in pods} == {pod: ["one", "", "three"] for pod in pods}


@pytest.mark.parametrize("kind", [JobKind.TF_JOB, JobKind.BATCH_JOB])
def test_a_job_with_other_containers_lasts_until_they_have_ended_except_for_sidecars(
    backend: KubernetesBackend, kind: JobKind
) -> None:
    image = SMALL["image"]
    prepare = {"name": "prepare", "image": image, "command": ["true"]}
    proxy = {"name": "proxy", "image": image, "command": ["sleep", "infinity"], "restartPolicy": "Always"}
    upload = {"name": "upload", "image": image, "command": ["sleep", "3"]}
    job = pods_job(
        QUICK, run_id="beside", kind=kind, pod=pod_patch({"initContainers": [prepare, proxy], "containers": [upload]})
    )
    heard, began = Heard(), time.monotonic()
    assert run_job(job, backend, heard).phase is Phase.SUCCEEDED
    assert time.monotonic() - began > 3
    assert heard.of(job.lead) == ["one", "", "three"]


def test_another_container_that_fails_is_named(backend: KubernetesBackend) -> None:
    upload = {"name": "upload", "image": SMALL["image"], "command": ["false"]}
    error = failure_of(
        pods_job(QUICK, run_id="upload", kind=JobKind.BATCH_JOB, pod=pod_patch({"containers": [upload]})), backend
    )
    assert "transfer-0 failed: its container upload exited with code 1" in str(error)


def test_a_crash_in_a_worker_fails_the_job_with_its_last_lines(backend: KubernetesBackend) -> None:
    crash = "import sys; print('about to'); sys.exit(3)"
    error = failure_of(pods_job(FOREVER, crash, run_id="crash"), backend)
    assert "worker-0 exited with code 3" in str(error)
    assert "about to" in error.log_tail


def test_pods_that_still_run_after_a_failure_are_deleted(backend: KubernetesBackend, api: KubernetesApi) -> None:
    failure_of(pods_job(FOREVER, "raise SystemExit(3)", run_id="left"), backend)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pods = api.get(api.path("v1", "pods"))
        phases = {pod["status"]["phase"] for pod in pods["items"]}
        if "Running" not in phases:
            assert phases == {"Failed"}, "the evidence stays"
            return
        time.sleep(0.5)
    raise AssertionError("the Chief still runs")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [JobKind.TF_JOB, JobKind.PYTORCH_JOB])
def test_a_training_that_restarts_too_often_stays_as_a_failed_job_without_pods(
    backend: KubernetesBackend, api: KubernetesApi, kind: JobKind
) -> None:
    crash = "raise SystemExit(3)"
    job = pods_job(crash, run_id="loops", kind=kind, policy=RestartPolicy.ON_FAILURE, backoff_limit=2)
    assert "no restarts are left" in str(failure_of(job, backend))
    found = backend.find(job)
    assert found is not None and found.phase is Phase.FAILED
    assert "exited with code 3" in found.annotations[FAILURE_ANNOTATION]
    await_that(lambda: not api.get(api.path("v1", "pods"))["items"])


def test_out_of_memory_is_reported(backend: KubernetesBackend) -> None:
    hungry = "import time; time.sleep(1); hoard = [bytearray(1 << 20) for _ in range(500)]; time.sleep(5)"
    error = failure_of(pods_job(FOREVER, hungry, run_id="oom"), backend)
    assert "worker-0 ran out of memory (limit 64Mi)" in str(error)


def test_an_image_that_does_not_exist(backend: KubernetesBackend) -> None:
    job = pods_job(QUICK, QUICK, run_id="image", image="localhost/nowhere:1")
    error = failure_of(job, backend, budgets=Budgets(troubles={TroubleKind.IMAGE_PULL: 3.0}))
    assert error.trouble is TroubleKind.IMAGE_PULL
    assert "(localhost/nowhere:1:" in str(error)


def test_a_gpu_that_no_node_has(backend: KubernetesBackend) -> None:
    heard = Heard()
    with pytest.raises(JobFailed, match=r"starting for .*Insufficient example\.com/gpu"):
        run_job(
            pods_job(QUICK, QUICK, run_id="gpu", gpus=1, gpu_resource="example.com/gpu"),
            backend,
            heard,
            Budgets(start_seconds=4),
        )
    assert any("cannot be scheduled" in text for text in heard.of("chief-0")), "it is reported at once"


def test_a_scheduler_that_does_not_run(backend: KubernetesBackend) -> None:
    job = pods_job(QUICK, QUICK, run_id="scheduler", pod=pod_patch({"schedulerName": "bin-packing"}))
    error = failure_of(job, backend, budgets=Budgets(start_seconds=4))
    assert error.trouble is TroubleKind.SCHEDULER
    assert "no scheduler has looked at it (bin-packing)" in str(error)


def test_pods_that_must_be_spread_over_racks_that_no_node_has(backend: KubernetesBackend) -> None:
    spread = {"maxSkew": 1, "topologyKey": "example.com/rack", "whenUnsatisfiable": "DoNotSchedule"}
    job = pods_job(QUICK, QUICK, run_id="spread", pod=pod_patch({"topologySpreadConstraints": [spread]}))
    error = failure_of(job, backend, budgets=Budgets(start_seconds=4))
    assert error.trouble is TroubleKind.UNSCHEDULABLE
    assert "topology spread constraints" in str(error)


def test_a_secret_that_is_missing(backend: KubernetesBackend) -> None:
    job = pods_job(QUICK, QUICK, run_id="secret", secret_env={"TOKEN": "absent/token"})
    error = failure_of(job, backend, budgets=Budgets(troubles={TroubleKind.CONFIGURATION: 2.0}))
    assert 'secret "absent" not found' in str(error)


def test_pods_that_pod_security_rejects(backend: KubernetesBackend) -> None:
    job = pods_job(QUICK, QUICK, run_id="refused", host_network=True)
    error = failure_of(job, backend, budgets=Budgets(troubles={TroubleKind.POD_SECURITY: 1.0}))
    assert error.trouble is TroubleKind.POD_SECURITY
    assert "violates PodSecurity" in str(error)


@pytest.mark.thorough
def test_a_quota_that_is_used_up(backend: KubernetesBackend, api: KubernetesApi) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {"hard": {"pods": "0"}}}
    api.create(api.path("v1", "resourcequotas"), quota)
    job = pods_job(QUICK, QUICK, run_id="quota")
    error = failure_of(job, backend, budgets=Budgets(start_seconds=8))
    assert error.trouble is TroubleKind.QUOTA


def test_a_deadline(backend: KubernetesBackend) -> None:
    error = failure_of(pods_job(FOREVER, FOREVER, run_id="late"), backend, budgets=Budgets(run_seconds=3))
    assert "running for" in str(error)
    assert "3 s" in str(error)


def test_a_job_that_someone_else_deletes(backend: KubernetesBackend) -> None:
    job = pods_job(FOREVER, FOREVER, run_id="deleted")

    def delete() -> None:
        with KubernetesBackend.connect(backend._api.namespace) as other:
            other.delete(await_running(other, job).handle)

    deleter = threading.Thread(target=delete)
    deleter.start()
    error = failure_of(job, backend)
    deleter.join()
    assert "deleted by someone else" in str(error)


def test_two_runs_of_one_pipeline_at_once_are_two_jobs(namespace: str) -> None:
    outcomes: list[object] = []

    def run(run_id: str) -> None:
        with KubernetesBackend.connect(namespace) as backend:
            outcomes.append(run_job(pods_job(QUICK, QUICK, run_id=run_id), backend, Heard()).handle.name)

    runs = [threading.Thread(target=run, args=(run_id,)) for run_id in ("mine", "yours", "mine")]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert len(outcomes) == 3
    assert len(set(outcomes)) == 2, "two launchers of one run share its job"


def test_a_name_taken_by_another_spec_is_rejected(backend: KubernetesBackend) -> None:
    run_job(pods_job(QUICK, QUICK, run_id="taken"), backend, Heard())
    with pytest.raises(JobNotOurs, match="with other settings"):
        run_job(pods_job(QUICK, FOREVER, run_id="taken"), backend, Heard())


def test_a_worker_that_is_killed_is_restarted(backend: KubernetesBackend) -> None:
    once = (
        "import os, pathlib, time; path = pathlib.Path('/dev/shm/been'); again = path.exists(); path.touch()\n"
        "time.sleep(1); os._exit(0 if again else 9)"
    )
    heard = Heard()
    job = pods_job("import time; time.sleep(8)", once, run_id="again", policy=RestartPolicy.ON_FAILURE)
    assert run_job(job, backend, heard).pods[1].restarts == 1
    assert any("code 9; restarting" in line for line in heard.of("worker-0"))


def test_the_verdict_is_known_within_a_second(backend: KubernetesBackend, api: KubernetesApi) -> None:
    job = pods_job(QUICK, QUICK, run_id="prompt")
    run_job(job, backend, Heard())
    known = time.time()
    found = backend._api.get(backend._path(job.kind, job.identity.name))
    assert known - ended(found) < 4, "the limit is a second, but the cluster rounds its times to seconds"


def ended(job: dict) -> float:
    return datetime.fromisoformat(job["status"]["completionTime"]).timestamp()


@pytest.mark.thorough
@pytest.mark.skipif(not API_SERVER.is_file(), reason="only the test cluster's API server may be stopped")
def test_an_api_server_outage_of_twenty_seconds(backend: KubernetesBackend) -> None:
    counting = "import time\nfor i in range(60): print('line', i, flush=True); time.sleep(0.5)"
    heard = Heard()
    job = pods_job(counting, counting, run_id="outage")
    outage = threading.Thread(target=lambda: (await_line(heard, "line 4"), stop_api_server(seconds=20)))
    outage.start()
    assert run_job(job, backend, heard).phase is Phase.SUCCEEDED
    outage.join()
    for pod in ("chief-0", "worker-0"):
        assert heard.of(pod) == [f"line {number}" for number in range(60)], "none is lost, none repeated"


def await_line(heard: Heard, text: str) -> None:
    while text not in heard.of("worker-0"):
        time.sleep(0.1)
