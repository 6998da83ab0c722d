"""A preflight measures every link without sharing it, and names the links and devices that stand out."""

from dataclasses import replace

import pytest

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.processes.preflight import (
    LINK_BYTES,
    BadNodes,
    Examined,
    describe,
    find,
    nodes_to_avoid,
    partners,
    rounds,
    warnings,
)
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.config_checks import check_framework

GPU = Examined(rank=0, node="", device="H200", product_seconds=0.001, is_exact=True, link_seconds={})


def ring(rates: list[float]) -> list[Examined]:
    """Pods with a GPU each. The rates in GB/s are those of the links to the next pod; two pods have one link."""
    pods = max(len(rates), 2)
    seconds = [{}, {}] if pods == 2 else [{} for _ in range(pods)]  # type: list[dict[int, float]]
    for pod, rate in enumerate(rates):
        following = (pod + 1) % pods
        seconds[pod][following] = seconds[following][pod] = LINK_BYTES / rate / 1e9
    return [replace(GPU, rank=pod, node=f"node-{pod}", link_seconds=each) for pod, each in enumerate(seconds)]


def places(measured: list[Examined]) -> list[str]:
    return [each.place for each in find(measured)]


@pytest.mark.parametrize("pods", range(1, 12))
def test_each_pod_meets_both_neighbors_and_one_at_a_time(pods: int) -> None:
    for pairs in rounds(pods):
        met = [pod for pair in pairs for pod in pair]
        assert len(met) == len(set(met))
    links = {frozenset(pair) for pairs in rounds(pods) for pair in pairs}
    assert links == {frozenset((pod, (pod + 1) % pods)) for pod in range(pods) if pods > 1}
    assert len(rounds(pods)) <= 2 + pods % 2


def test_processes_meet_those_of_their_number_in_the_neighboring_pods() -> None:
    def met(rank: int, world_size: int) -> list[int | None]:
        role = ProcessRole(rank=rank, world_size=world_size, local_rank=rank % 2, local_world_size=2)
        return [*partners(role)]

    assert [met(rank, 4) for rank in range(4)] == [[2], [3], [0], [1]]
    assert [met(rank, 6) for rank in range(6)] == [
        *([2, None, 4], [3, None, 5]),
        *([0, 4, None], [1, 5, None]),
        *([None, 2, 0], [None, 3, 1]),
    ]
    assert met(0, 2) == []


def test_equal_links_and_devices_are_fine() -> None:
    assert places(ring([10.0, 9.0, 11.0, 8.0])) == []
    assert places(ring([0.11])) == []


def test_a_slow_link_is_named_with_its_nodes() -> None:
    (warning,) = warnings(find(ring([10.0, 9.0, 11.0, 2.0, 10.0])))
    assert warning.startswith(
        "slow link: rank 3 on node-3 to rank 4 on node-4 carries 2 GB/s, expected at least 5 GB/s: check the network"
    )


def test_the_links_of_a_slow_node_are_named_even_if_they_are_most() -> None:
    assert places(ring([10.0, 2.0, 2.5])) == [
        "rank 1 on node-1 to rank 2 on node-2",
        "rank 0 on node-0 to rank 2 on node-2",
    ]


def test_the_only_link_is_slow_if_it_carries_less_than_gigabit_ethernet() -> None:
    assert places(ring([0.09])) == ["rank 0 on node-0 to rank 1 on node-1"]


def test_a_link_is_as_slow_as_its_slower_end() -> None:
    one, another = ring([1.0])
    slow = LINK_BYTES / 0.05e9
    assert places([one, replace(another, link_seconds={0: slow})]) != []
    assert places([replace(one, link_seconds={1: slow}), another]) != []


def test_pods_of_one_node_do_not_make_others_look_slow() -> None:
    pods = ring([100.0, 10.0, 10.0])
    assert places(pods) != []
    assert places([replace(pods[0], node="node-1"), *pods[1:]]) == []


def test_a_slow_device_is_compared_with_those_of_its_kind() -> None:
    slow = replace(GPU, rank=2, node="node-2", product_seconds=0.0025)
    (warning,) = warnings(find([*ring([10.0]), slow]))
    assert warning.startswith(
        "slow device: rank 2 on node-2 takes 2.5 ms for a product of matrices, expected at most 2 ms (H200)"
    )
    assert find([*ring([10.0]), replace(slow, device="L4")]) == []


def test_a_device_that_multiplies_wrongly_is_named() -> None:
    (warning,) = warnings(find([*ring([10.0]), replace(GPU, rank=2, node="node-2", is_exact=False)]))
    assert warning.startswith("faulty device: rank 2 on node-2 multiplies matrices wrongly (H200): ")


def test_the_line_has_the_range_of_rates_and_what_stands_out() -> None:
    measured = ring([10.0, 2.0, 11.0, 10.0])
    assert describe(measured, find(measured), 1.25) == (
        "4 devices, 4 links between nodes at 2 to 11 GB/s, in 1.2 s; "
        "slow or faulty: rank 1 on node-1 to rank 2 on node-2"
    )
    assert describe([GPU], [], 0.5) == "1 device, in 0.5 s"


def test_a_line_and_the_warnings_stay_short_in_a_large_cluster() -> None:
    wrong = [replace(GPU, rank=rank, node=f"node-{rank}", is_exact=False) for rank in range(1000)]
    assert len(describe(wrong, find(wrong), 1.0)) < 300
    [*named, last] = warnings(find(wrong))
    assert (len(named), last) == (8, "992 more links or devices are slow or faulty")


def avoided(measured: list[Examined]) -> list[str]:
    return nodes_to_avoid(measured, find(measured))


def slowed(measured: list[Examined], *ranks: int) -> list[Examined]:
    return [replace(each, product_seconds=0.005 if each.rank in ranks else 0.001) for each in measured]


@pytest.mark.parametrize(
    ("rates", "nodes"),
    [
        ([10.0, 10.0, 10.0, 10.0], []),
        ([10.0, 2.0, 2.0, 10.0, 10.0, 10.0], ["node-2"]),  # it has both slow links
        ([2.0, 10.0, 10.0, 10.0, 2.0], ["node-0"]),  # as rank 0's here
        ([2.0, 10.0, 10.0, 10.0, 10.0], ["node-1"]),  # not rank 0's
        ([10.0, 10.0, 2.0, 10.0, 10.0], ["node-3"]),  # the later one
        ([10.0, 2.0, 2.0, 2.0, 10.0, 10.0, 10.0, 2.0, 10.0, 10.0], ["node-3", "node-8", "node-2"]),
        ([0.09], ["node-1"]),
    ],
)
def test_few_nodes_are_avoided_for_slow_links(rates: list[float], nodes: list[str]) -> None:
    assert avoided(ring(rates)) == nodes


def test_rank_0s_node_is_kept_even_if_it_has_other_pods() -> None:
    pods = ring([2.0, 10.0, 10.0, 10.0, 10.0])
    assert avoided([replace(each, node="node-0") if each.rank == 3 else each for each in pods]) == ["node-1"]


def test_the_node_of_a_bad_device_is_avoided_and_explains_its_links() -> None:
    slow = slowed(ring([10.0, 2.0, 10.0, 10.0, 10.0]), 1)
    assert avoided(slow) == ["node-1"], "and not node-2, at the other end of its slow link"
    wrong = [replace(each, is_exact=each.rank != 4) for each in slow]
    assert avoided(wrong) == ["node-4", "node-1"]


def test_a_node_of_several_bad_devices_is_avoided_once() -> None:
    pods = [replace(each, node=f"node-{each.rank // 2}") for each in ring([10.0] * 4)]
    assert avoided([replace(each, is_exact=each.rank < 2) for each in pods]) == ["node-1"]


def test_no_node_is_avoided_if_no_other_would_be_left() -> None:
    (alone,) = slowed([replace(GPU, node="node-0", is_exact=False)])
    assert avoided([alone]) == []
    assert avoided([replace(each, is_exact=False) for each in ring([10.0, 10.0, 10.0])]) == []


def test_the_error_names_the_nodes_and_the_worst_finding() -> None:
    measured = ring([10.0, 2.0, 4.0, 10.0, 10.0, 10.0])
    error = BadNodes(avoided(measured), find(measured))
    assert error.avoid_nodes == ("node-2",)
    assert str(error) == (
        "bad nodes found before the first step: node-2 (slow link: rank 1 on node-1 to rank 2 on node-2 carries 2 "
        "GB/s, expected at least 5 GB/s; 1 more in the log of rank 0)"
    )
    assert not error.is_curable


def test_scripts_have_no_preflight_of_ours() -> None:
    with pytest.raises(InvalidSetting, match=r"train\.preflight is for the trainer's loop"):
        TrainConfig(preflight="avoid", entry={"script": "train.py"})


def test_tensorflow_has_no_preflight_and_avoids_no_nodes() -> None:
    with pytest.raises(InvalidSetting, match=r"train\.preflight is for PyTorch"):
        check_framework("tensorflow", TrainConfig(preflight="avoid"))
