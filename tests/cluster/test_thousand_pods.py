"""A job of 1,000 pods on make-believe nodes: created, followed, disrupted and cancelled at a small cost."""

import time

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from support.cluster import await_that
from support.many_pods import LargeLaunch, evict_all, fake_nodes, pods_of, pods_that_stay

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

PODS, EVICTED = 1000, 50
START_SECONDS, REST_SECONDS, GONE_SECONDS = 1200.0, 130.0, 900.0


def test_a_launcher_follows_a_thousand_pods(api: KubernetesApi, backend: KubernetesBackend) -> None:
    if fake_nodes(api) * 110 < PODS:
        pytest.skip("the cluster has not enough kwok nodes: ../shared/cluster/add kwok 10")
    with pods_that_stay(api), LargeLaunch(api.namespace, Launcher.JOB, PODS, "thousand") as launch:
        launch.await_all_running(START_SECONDS)
        assert launch.cost().cpu_seconds < 60
        time.sleep(15)  # the last events of the start arrive
        before = launch.cost()
        time.sleep(REST_SECONDS)
        after = launch.cost()
        assert after.cpu_seconds - before.cpu_seconds < 0.02 * (after.at - before.at)

        evict_all(api, pods_of(api)[-1:])
        evicted_at = time.time()
        assert launch.await_seen(lambda running, restarts: running < PODS or restarts > 0, 60) < evicted_at + 2
        launch.await_seen(lambda running, restarts: running == PODS and restarts == 1, START_SECONDS)

        evict_all(api, pods_of(api)[:EVICTED])
        launch.await_seen(lambda running, restarts: running == PODS and restarts == 1 + EVICTED, START_SECONDS)
        assert launch.max_mebibytes < 400
        assert launch.max_threads < 64
        assert not [line for line in launch.log() if "failed:" in line]

        assert launch.cancel(60) != 0
        assert backend.find(launch.job) is None
        await_that(lambda: not pods_of(api), GONE_SECONDS)
