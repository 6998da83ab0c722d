"""The settings of the pods of the evaluation and of the transfer have the values that those of the training have."""

import pytest

from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_trainer.errors import InvalidSetting

OTHER_PODS = pytest.mark.parametrize("name", ["pods.evaluation", "storage.transfer"])


@OTHER_PODS
def test_cpus_may_be_a_number(name: str) -> None:
    group, _, key = name.partition(".")
    assert AskedRun(pairs=(f"{name}.cpu=2",)).read().request == {group: {key: {"cpu": "2"}}}


@OTHER_PODS
def test_an_unknown_name_is_refused_before_anything_starts(name: str) -> None:
    with pytest.raises(InvalidSetting, match=r"did you mean 'pods\.memory'"):
        AskedRun(pairs=(f"{name}.memori=2Gi",)).read()
