"""`kubetrain status` and `kubetrain top` of jobs on a real cluster."""

import re

import pytest

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from support.cli import kubetrain, read_until, start
from support.cluster import FOREVER, await_that, pods_job

pytestmark = [pytest.mark.cluster, pytest.mark.core]

TRAINING = (
    "import time; print('[kubetrain] step=3/9 loss=0.5 seconds_left=6 checkpoint_age_seconds=4', flush=True); "
    "time.sleep(3600)"
)


@pytest.mark.parametrize("kind", [JobKind.TF_JOB, JobKind.BATCH_JOB])
def test_a_job_is_shown_while_it_runs_and_watched_until_it_is_gone(
    backend: KubernetesBackend, namespace: str, kind: JobKind
) -> None:
    programs = [TRAINING, FOREVER] if kind is JobKind.TF_JOB else [TRAINING]
    handle = backend.create(pods_job(*programs, run_id="seen", kind=kind))
    status = ("status", handle.name, "--namespace", namespace)
    await_that(lambda: "progress   step" in kubetrain(*status).output)
    shown = kubetrain(*status).output
    lead = "chief-0" if kind is JobKind.TF_JOB else "transfer-0"
    assert shown.startswith(f"job {handle.name} ({kind}): Running\n")
    assert re.search(rf"^  {lead} +Running  \S+$", shown, re.M)
    assert re.search(r"step 3/9 · loss 0.5000 · .*time left 6 s · +unsaved [\d a-z]+$", " ".join(shown.split()))
    pods = len(programs)
    rows = kubetrain("top", "--namespace", namespace).output.splitlines()
    assert re.fullmatch(rf"{handle.name} +{pods}/{pods} +0 +\S+/0.{'05' if pods == 1 else '1'} +\S+/\S+Gi", rows[2])
    watch = start(*status, "--watch")
    read_until(watch, "progress step 3/9")
    backend.delete(handle)
    output, _ = watch.communicate(timeout=60)
    assert f"job {handle.name} can no longer be read, so how it ended is unknown" in output
    assert watch.returncode == 3


def test_a_job_that_no_node_has_room_for_says_what_it_waits_for(backend: KubernetesBackend, namespace: str) -> None:
    handle = backend.create(pods_job(FOREVER, FOREVER, run_id="large", cpu="1000"))
    status = ("status", handle.name, "--namespace", namespace)
    await_that(lambda: "waiting" in kubetrain(*status).output)
    shown = kubetrain(*status).output
    assert "Insufficient cpu" in shown
    assert "the same for 1 more pod" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(rf"^{handle.name} +0/2 +0 +0/0 +0/0Gi$", kubetrain("top", "--namespace", namespace).output, re.M)
