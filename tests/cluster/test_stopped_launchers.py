"""Argo kills a step 0.9 s after its SIGTERM: the launcher must have deleted its job by then, whatever it was doing."""

import random
import signal
import time

import pytest

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from support.cluster import FOREVER, Launched, await_that
from support.following import training_job

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]
TRIES = 20
KILL_SECONDS = 0.9


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_job_outlives_a_launcher_that_is_terminated_and_killed(
    launcher: Launcher, namespace: str, backend: KubernetesBackend
) -> None:
    jobs = [training_job(launcher, FOREVER, f"stopped-{number}") for number in range(TRIES)]
    for job in jobs:
        stop_soon(Launched(namespace, job), job, backend)
    found = [backend.find(job) for job in jobs]
    assert [state.handle.name for state in found if state is not None and not state.is_deleting] == []


def stop_soon(launched: Launched, job: Job, backend: KubernetesBackend) -> None:
    await_that(lambda: backend.find(job))
    time.sleep(random.uniform(0, 4))
    launched.process.send_signal(signal.SIGTERM)
    time.sleep(KILL_SECONDS)
    launched.process.kill()
    launched.rest()
