"""The role of a process, read from torchrun's variables and TF_CONFIG."""

import json

import pytest

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.processes.process_role import ProcessRole, check_gpus, tensorflow_role, torchrun_role


def test_torchruns_variables() -> None:
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert torchrun_role(environment) == ProcessRole(rank=3, world_size=4, local_rank=1, local_world_size=2)


def test_rank_without_local_rank_is_that_of_the_node_and_is_ignored() -> None:
    assert torchrun_role({"RANK": "1", "WORLD_SIZE": "2"}) == ProcessRole()


@pytest.mark.parametrize(
    ("cluster", "kind", "index", "rank", "world_size"),
    [
        ({"chief": ["a"], "worker": ["b", "c"]}, "chief", 0, 0, 3),
        ({"chief": ["a"], "worker": ["b", "c"]}, "worker", 0, 1, 3),
        ({"chief": ["a"], "worker": ["b", "c"]}, "worker", 1, 2, 3),
        ({"worker": ["b", "c"]}, "worker", 0, 0, 2),
        ({"worker": ["b", "c"]}, "worker", 1, 1, 2),
    ],
)
def test_tf_config_puts_the_chief_first(
    cluster: dict[str, list[str]], kind: str, index: int, rank: int, world_size: int
) -> None:
    config = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
    role = tensorflow_role({"TF_CONFIG": json.dumps(config)})
    assert (role.rank, role.world_size, role.is_rank_0) == (rank, world_size, rank == 0)


@pytest.mark.parametrize("environment", [{}, {"TF_CONFIG": ""}])
def test_a_tfjob_of_one_replica_gets_no_tf_config(environment: dict[str, str]) -> None:
    assert tensorflow_role(environment) == ProcessRole()


@pytest.mark.parametrize(("processes", "gpus"), [(2, 0), (2, 2), (1, 4)])
def test_enough_gpus_pass(processes: int, gpus: int) -> None:
    check_gpus(ProcessRole(local_world_size=processes), gpus)


def test_too_few_gpus_are_rejected() -> None:
    with pytest.raises(InvalidSetting, match="each of the pod's 4 processes needs its own GPU, but the pod has 2"):
        check_gpus(ProcessRole(local_world_size=4), 2)
