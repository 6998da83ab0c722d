"""Values of a wrong type anywhere in a setting are refused with a sentence, or passed on for the cluster to judge."""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_checks import POD, REQUIRED
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_pipelines.doctor.capacity import judge_nodes
from kubetrain_pipelines.doctor.needs import Needs
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig
from support.manifests import IMAGE, batch, elastic, indexed, pytorch, tensorflow, trainjob

SCALARS = [5, 1.5, -1, 10**400, "x", "", "1e999999999", True, None]
WRONG: list[Any] = [*SCALARS, [], [5], {}, {"name": 5}, {"name": "x", "image": ["i"]}, {"name": None, "key": {"a": 1}}]
KEYS = ["NCCL_DEBUG", "nodeAffinity", "podAffinity", "example.com/x"]
NODE = {
    "metadata": {"name": "n", "labels": {"size": "8"}},
    "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
    "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}},
}


def wrong_values(kind: Any) -> Iterator[Any]:
    yield from WRONG
    if kind == list[Any]:
        yield from ([each] for each in WRONG)
    if kind == dict[str, Any]:
        yield from ({key: each} for key in KEYS for each in WRONG)


def broken(shape: Any) -> Iterator[Any]:
    """Yield values of this shape, each with one wrong value in it."""
    if shape in (str, int):
        yield {str: 5, int: "x"}[shape]
        return
    yield "x"
    if isinstance(shape, list):
        yield from ([each] for each in (*broken(shape[0]), None))
    if isinstance(shape, dict):
        whole = {name: {str: "x", int: 1}[inner] for name, inner in shape.items() if isinstance(inner, type)}
        for name, inner in shape.items():
            yield from ({**whole, name: each} for each in broken(inner))
            if name in whole:
                yield {other: value for other, value in whole.items() if other != name}


@pytest.mark.parametrize("name", Placement.names())
def test_no_value_in_a_placement_breaks_the_manifests_or_the_doctor(name: str) -> None:
    kind = {each.name: each.type for each in fields(Placement)}[name]
    for value in wrong_values(kind):
        try:
            placement = Placement.from_dict({"image": IMAGE, name: value})
        except InvalidSetting as refused:
            assert any(each in str(refused) for each in (name, *KEYS))
            continue
        for make in (pytorch, elastic, tensorflow, indexed, trainjob, batch):
            try:
                manifests = manifests_of(make(placement))
                assert json.dumps(manifests)
                if make in (pytorch, trainjob):
                    assert judge_nodes([NODE], Needs.of(manifests).training, can_grow=False).status
            except InvalidSetting as refused:
                assert str(refused)


@pytest.mark.parametrize("name", TrainConfig.names())
def test_no_value_of_a_training_setting_is_a_traceback(name: str) -> None:
    kind = {each.name: each.type for each in fields(TrainConfig)}[name]
    for value in wrong_values(kind):
        try:
            assert TrainConfig.from_dict({name: value}).to_flags() is not None
        except InvalidSetting as refused:
            assert TrainConfig.public_name(name) in str(refused)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5_000, "{'a': 1}", ""])
@pytest.mark.parametrize("name", ["gpus", "scale_metrics", "env", "host_network"])
def test_no_text_of_a_setting_is_a_traceback(name: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"^pods\.{name} must be"):
        Placement.from_dict({name: Placement.parse(name, text)})


@pytest.mark.parametrize("field", POD["spec"])
def test_each_wrong_value_in_the_shape_of_a_patch_is_refused(field: str) -> None:
    for value in broken(POD["spec"][field]):
        with pytest.raises(InvalidSetting, match=field) as refused:
            Placement(pod={"spec": {field: value}})
        assert "format" in str(refused.value)


@pytest.mark.parametrize("place", ["nccl", "env", "labels", "annotations", "nodeSelector"])
@pytest.mark.parametrize("value", [None, ["secret"]])
def test_objects_of_strings_have_no_lists_in_them(place: str, value: Any) -> None:
    key = "NCCL_DEBUG"
    metadata = {"labels": {"metadata": {place: {key: value}}}, "annotations": {"metadata": {place: {key: value}}}}
    pod = metadata.get(place, {"spec": {place: {key: value}}})
    with pytest.raises(InvalidSetting, match=rf"{place}\.{key}") as refused:
        Placement.from_dict({place: {key: value}} if place in ("nccl", "env") else {"pod": pod})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        ({"spce": {}}, "pod has no field 'spce': did you mean 'spec'?"),
        ({"metadata": {"name": "x"}}, "pod.metadata.name cannot be set: only labels and annotations can"),
        ({"spec": {"nodeSelectr": {}}}, "pod.spec has no field 'nodeSelectr': did you mean 'nodeSelector'?"),
        ({"spec": {"hostNetwork": True}}, "pod.spec.hostNetwork cannot be set there: set pods.host_network"),
        ({"spec": {"restartPolicy": "Never"}}, "pod.spec.restartPolicy cannot be set there: set pods.restart_policy"),
        ({"spec": {"priorityClassName": "High"}}, "pod.spec.priorityClassName 'High' is not a valid object name"),
        (pod_patch(main={"image": "i"}), "pod cannot set image of the main container: set pods.image"),
        (
            pod_patch(main={"env": [{"name": "A"}]}),
            "pod cannot set env of the main container: set pods.env, pods.secret_env or pods.nccl",
        ),
        (pod_patch(main={"command": ["a"]}), "pod cannot set command of the main container: set train.entry"),
        (pod_patch({"containers": [{"name": "pytorch"}]}), "has no image: name the container that trains"),
        (pod_patch(main={"resources": {"requests": {"cpu": 2}}}), "pod cannot request cpu: set "),
        (
            pod_patch(main={"resources": {"limits": {"x/y": "many"}}}),
            "limits of x/y 'many' is not a Kubernetes quantity",
        ),
        (pod_patch(main={"resources": {"limits": {"cpu": "0"}}}), "the limit of cpu is 0: set more, or none"),
    ],
)
def test_what_a_patch_cannot_set_is_named_with_the_remedy(pod: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Placement(pod=pod)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale_metrics": [5]}, "scale_metrics[0] is not an object: write it in Kubernetes' format"),
        (
            {"pod": {"spec": {"affinity": {"podAffinity": {REQUIRED: 5}}}}},
            f"affinity.podAffinity.{REQUIRED} is not a list",
        ),
        ({"env": {"TOKEN": {"secretKeyRef": {"key": "secret"}}}}, "env.TOKEN.secretKeyRef has no name"),
        ({"pod": {"spec": {"volumes": [{"name": "a"}, {"emptyDir": {}}]}}}, "pod.spec.volumes[1] has no name"),
    ],
)
def test_the_wrong_value_is_named_by_its_path(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Placement.from_dict(settings)
    assert message in str(refused.value)


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
def test_a_comparison_without_a_number_is_not_met(operator: str) -> None:
    rule = {"key": "size", "operator": operator, "values": []}
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}}}
    training = Needs.of(manifests_of(pytorch(Placement(image=IMAGE, pod=pod_patch({"affinity": affinity}))))).training
    assert "0 of 1 nodes admit" in judge_nodes([NODE], training, can_grow=False).evidence
