"""A job of 1,000 pods on make-believe nodes: created, followed, disrupted and cancelled at a small cost."""

import statistics

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from support.many_pods import LargeLaunch, fake_nodes, measure, pods_that_stay

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

PODS, PODS_OF_A_NODE = 1000, 110


def test_a_launcher_follows_a_thousand_pods(api: KubernetesApi, backend: KubernetesBackend) -> None:
    if fake_nodes(api) * PODS_OF_A_NODE < PODS:
        pytest.skip("the cluster has too few kwok nodes: ../shared/cluster/add kwok 10")
    with pods_that_stay(api), LargeLaunch(api.namespace, Launcher.JOB, PODS, "thousand") as launch:
        figures = measure(api, launch, rest_seconds=130)
    print(figures, *launch.log(), sep="\n")
    assert figures.cpu_seconds_to_run < 60
    assert figures.share_at_rest < 0.02
    assert statistics.median(figures.seconds_to_see) < 2
    assert figures.mebibytes < 400
    assert figures.threads < 64
    assert not [line for line in launch.log() if "failed:" in line]
    assert backend.find(launch.job) is None
