from kubetrain_trainer.some_of import some_of


def test_few_items_are_all_named() -> None:
    assert some_of(["a", "b", "c"]) == "a, b, c"


def test_of_many_items_the_first_are_named() -> None:
    named = some_of([f"worker-{number}" for number in range(1000)])
    assert named.startswith("worker-0, worker-1, ")
    assert named.endswith(" and 992 more")
