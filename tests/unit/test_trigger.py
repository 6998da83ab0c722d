"""Triggers of schedules: only cron expressions that the server would misread or hang on are rejected here."""

from datetime import timedelta
from typing import Any

import pytest

from kubetrain_pipelines.kubeflow.trigger import check_cron, make_trigger, parse_interval
from kubetrain_trainer.errors import InvalidSetting


@pytest.mark.parametrize(
    "days",
    [
        "* * *",
        "? * ?",
        "29 2 *",
        "29 FEB ?",
        "31 2,mar *",
        "28-31 2 *",
        "20/5 2 *",
        "*/30 2 *",
        "1 1-12/11 *",
        "* * Mon",
        "30 2 mon",  # either day field is enough: Mondays in February
        "one 2 *",  # malformed: the server names the error
        "*/0 * *",
    ],
)
def test_an_expression_that_fires_or_that_the_server_rejects_is_accepted(days: str) -> None:
    check_cron(f"0 0 2 {days}")


@pytest.mark.parametrize(
    "days",
    [
        "30 2 *",
        "30,31 feb ?",
        "31 2,4,6,9,11 *",
        "31 Feb-apr/2 *",
        "30/9 2 */2",
        "0 * *",
        "* 13 *",
        "* * 7",
        "* * fri-sun",
    ],
)
def test_an_expression_that_never_fires_is_rejected(days: str) -> None:
    with pytest.raises(InvalidSetting, match="never fires: correct its day"):
        check_cron(f"0 0 2 {days}")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [("0 2 * * *", r"not 5: use '0 0 2 \* \* \*'"), ("@daily", r"not 1: use '0 0 2 \* \* \*'")],
)
def test_an_expression_needs_six_fields(text: str, remedy: str) -> None:
    with pytest.raises(InvalidSetting, match=remedy):
        check_cron(text)


def test_intervals_add_up() -> None:
    assert [parse_interval(text) for text in ("90s", "30m", "6h", "1d", "1h30m")] == [90, 1800, 21600, 86400, 5400]


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ({"every": 6}, "every must be text such as '6h', not 6"),
        ({"every": timedelta(hours=6)}, "every must be text such as '6h', not datetime"),
        ({"cron": 2}, r"cron must be text such as '0 0 2 \* \* \*', not 2"),
    ],
)
def test_a_trigger_that_is_no_text_is_rejected(trigger: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        make_trigger(**{"cron": "", "every": "", **trigger})
