"""The number of training processes in a pod fits its GPUs, and the evaluation takes one GPU."""

from typing import Any

import pytest

from kubetrain_components.jobs.placement import Placement, processes_in_pod
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.run.combined_settings import place_evaluation
from kubetrain_trainer.errors import InvalidSetting


@pytest.mark.parametrize(
    ("framework", "wanted", "placement", "processes"),
    [
        ("pytorch", 0, {}, 1),
        ("pytorch", 3, {}, 3),
        ("pytorch", 0, {"gpus": 8}, 8),
        ("pytorch", 8, {"gpus": 8}, 8),
        (
            "pytorch",
            0,
            {"pod": pod_patch({}, {"resources": {"limits": {"amd.com/gpu": "2", "example.com/fpga": 4}}})},
            2,
        ),
        ("pytorch", 0, {"gpus": 2, "gpu_resource": "example.com/a100"}, 2),
        ("pytorch", 0, {"gpus": 2, "gpu_resource": "nvidia.com/gpu.shared"}, 1),
        ("pytorch", 0, {"pod": pod_patch({}, {"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}})}, 1),
        (
            "pytorch",
            0,
            {
                "pod": pod_patch(
                    {}, {"resources": {"limits": {"gpu.intel.com/i915": 1, "gpu.intel.com/memory.max": "8G"}}}
                )
            },
            1,
        ),
        (
            "pytorch",
            4,
            {"pod": pod_patch({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "four"}]})},
            4,
        ),
        ("tensorflow", 0, {"gpus": 8}, 1),
        ("tensorflow", 1, {"gpus": 8}, 1),
    ],
)
def test_each_gpu_has_a_process(framework: str, wanted: int, placement: dict[str, Any], processes: int) -> None:
    assert processes_in_pod(framework, wanted, Placement.from_dict(placement), {}) == processes


@pytest.mark.parametrize(
    ("framework", "wanted", "gpus", "message"),
    [
        ("pytorch", 2, 8, "6 of a pod's 8 GPUs would be idle"),
        ("pytorch", 8, 4, "a pod has 4 GPUs, and each process needs its own"),
        ("tensorflow", 2, 2, "uses every GPU of its pod"),
    ],
)
def test_gpus_that_do_not_fit_are_refused(framework: str, wanted: int, gpus: int, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        processes_in_pod(framework, wanted, Placement(gpus=gpus), {})


@pytest.mark.parametrize(
    ("training", "own", "differs"),
    [
        (
            {"gpus": 8, "rdma": {"rdma/hca": 1}, "memory": "64Gi"},
            {},
            {"gpus": 1, "rdma": {"rdma/hca": 1}, "memory": "64Gi"},
        ),
        ({"gpus": 8}, {"gpus": 4, "memory": "8Gi"}, {"gpus": 4, "memory": "8Gi"}),
        (
            {"gpus": 8},
            {"gpus": 0, "pod": pod_patch({"nodeSelector": {"pool": "cpu"}})},
            {"pod": pod_patch({"nodeSelector": {"pool": "cpu"}})},
        ),
        (
            {"pod": pod_patch({}, {"resources": {"limits": {"amd.com/gpu": 8, "example.com/fpga": 4}}})},
            {},
            {"pod": pod_patch({}, {"resources": {"limits": {"amd.com/gpu": 1, "example.com/fpga": 4}}})},
        ),
        (
            {"pod": pod_patch({}, {"resources": {"limits": {"nvidia.com/gpu": "0"}}})},
            {},
            {"pod": {"spec": {"containers": [{"name": "main"}]}}},
        ),
        ({}, {}, {}),
    ],
)
def test_an_evaluation_takes_one_gpu(training: dict[str, Any], own: dict[str, Any], differs: dict[str, Any]) -> None:
    assert place_evaluation(Placement.from_dict(training), own).changed_settings() == differs


def test_settings_of_the_evaluation_must_fit_together() -> None:
    with pytest.raises(InvalidSetting, match=r"the limit of pods\.memory '1Gi' is less than pods\.memory '64Gi'"):
        place_evaluation(Placement(memory="64Gi"), {"pod": pod_patch({}, {"resources": {"limits": {"memory": "1Gi"}}})})
