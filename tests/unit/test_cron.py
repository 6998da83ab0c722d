"""Cron expressions, against what the server's own library made of them (recorded/kfp/cron.jsonl)."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kubetrain_pipelines.kubeflow.cron import Cron
from kubetrain_trainer.errors import InvalidSetting

RECORDED = Path(__file__).parent / "recorded" / "kfp" / "cron.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in RECORDED.read_text().splitlines()]


def times_of(cron: Cron, after: str, zone: str, number: int = 5) -> list[str]:
    moment: datetime | None = datetime.fromisoformat(after)
    times = []
    while moment and len(times) < number and (moment := cron.next_after(moment, ZoneInfo(zone))):
        times.append(f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    return times


def test_times_are_those_of_the_servers_library() -> None:
    usable = [case for case in CASES if "error" not in case]
    assert len(usable) > 100
    wrong = [
        case
        for case in usable
        if times_of(Cron.parse(case["cron"]), case["after"], case["zone"]) != (case["next"] or [])
    ]
    assert wrong == []


def test_what_the_servers_library_refuses_is_refused() -> None:
    refused = {case["cron"] for case in CASES if "error" in case}
    assert len(refused) >= 10
    for text in refused:
        with pytest.raises(InvalidSetting):
            Cron.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 2 * * *", "which Kubeflow Pipelines would read from the seconds on: write '0 0 2 * * *'"),
        ("@daily", "has 1 fields, not six: second, minute, hour, day of the month, month, day of the week"),
        ("0 0 25 * * *", "'25' is no hour in cron: 0 to 23, with *, -, / and ,"),
        ("0 0 2 * * 7", "'7' is no day of the week in cron: 0 to 6, names as mon-fri"),
        ("0 0 2 * * mo", "'mo' is no day of the week in cron"),
        ("0 ٣ * * * *", "is no minute in cron"),
    ],
)
def test_a_refusal_names_the_field_and_the_remedy(text: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        Cron.parse(text)
    assert says in str(refused.value)


def test_what_never_comes_is_no_time() -> None:
    assert times_of(Cron.parse("0 0 0 30 2 *"), "2026-01-01T00:00:00+00:00", "UTC") == []


def test_a_night_that_skips_the_hour_is_left_out_as_the_server_does() -> None:
    nights = times_of(Cron.parse("0 30 2 * * *"), "2026-03-28T00:00:00+00:00", "Europe/Berlin", 2)
    assert nights == ["2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z"]
