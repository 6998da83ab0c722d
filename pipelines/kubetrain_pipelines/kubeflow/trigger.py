"""The trigger of a schedule: a cron expression or an interval.

The server rejects malformed cron expressions. This module rejects those that it would misread (five fields) or hang on
(30 February).
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from kubetrain_pipelines.kubeflow.kfp_api import Message
from kubetrain_trainer.errors import InvalidSetting

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
WEEKDAYS = "sun mon tue wed thu fri sat".split()
MAX_SECONDS = 10 * 365 * UNITS["d"]
SEARCHED_DAYS = 5 * 365
"""The server's cron library searches the next five years."""


def make_trigger(cron: str, every: str) -> Message:
    """
    Raises:
        InvalidSetting: if both or neither are given, or the trigger is invalid or never fires.
    """
    _check_text("cron", cron, "0 0 2 * * *")
    _check_text("every", every, "6h")
    if bool(cron) == bool(every):
        raise InvalidSetting("give exactly one of cron, such as '0 0 2 * * *' (seconds first), and every, such as 6h")
    if every:
        return {"periodic_schedule": {"interval_second": str(parse_interval(every))}}
    check_cron(cron)
    return {"cron_schedule": {"cron": cron}}


def _check_text(name: str, given: object, example: str) -> None:
    if given and not isinstance(given, str):
        raise InvalidSetting(f"{name} must be text such as '{example}', not {given!r}")


def describe_trigger(schedule: Message) -> str:
    trigger = schedule.get("trigger", {})
    if cron := trigger.get("cron_schedule", {}).get("cron"):
        return f"cron '{cron}'"
    return f"every {trigger.get('periodic_schedule', {}).get('interval_second', '?')} s"


def parse_interval(text: str) -> int:
    """Return the seconds in an interval such as 30m, 6h or 1h30m."""
    parts = re.findall(r"([0-9]+)([smhd])", text)
    seconds = sum(int(number) * UNITS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != text or not 0 < seconds <= MAX_SECONDS:
        raise InvalidSetting(f"'{text}' is not an interval of up to ten years: use 30m, 6h, 1d or 1h30m")
    return seconds


def check_cron(text: str) -> None:
    """
    Raises:
        InvalidSetting: if the expression does not have six fields, or never fires.
    """
    fields = text.split()
    if len(fields) != 6:
        example = f"0 {' '.join(fields)}" if len(fields) == 5 else "0 0 2 * * *"
        raise InvalidSetting(
            f"cron '{text}' must have six fields (second, minute, hour, day of the month, month, day of the week), "
            f"not {len(fields)}: use '{example}'"
        )
    try:
        fires = _fires(*fields[3:])
    except ValueError:  # malformed: the server reports the error
        return
    if not fires:
        raise InvalidSetting(
            f"cron '{text}' never fires: correct its day of the month (1-31), month (1-12) or day of the week (0-6)"
        )


def _fires(day: str, month: str, weekday: str) -> bool:
    days, months = _values(day, range(1, 32)), _values(month, range(1, 13), MONTHS)
    weekdays = _values(weekday, range(7), WEEKDAYS)
    # As in any cron: if both day fields are restricted, either is enough.
    matches = all if re.search(r"[*?]", day + weekday) else any
    dates = (datetime.now(UTC) + timedelta(days=number) for number in range(SEARCHED_DAYS))
    return any(
        date.month in months and matches((date.day in days, date.isoweekday() % 7 in weekdays)) for date in dates
    )


def _values(field: str, numbers: range, names: Sequence[str] = ()) -> set[int]:
    """Return the numbers in a field such as `1-5`, `*/2`, `mon,fri` or `20/5`.

    Raises:
        ValueError: if a part is neither a number nor a name.
    """
    values: set[int] = set()
    for part in filter(None, field.lower().split(",")):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        is_star = low in ("*", "?")
        first = numbers[0] if is_star else _number(low, numbers, names)
        last = _number(high, numbers, names) if high else numbers[-1] if step or is_star else first
        values.update(range(first, min(last, numbers[-1]) + 1, int(step or 1)))
    return values


def _number(text: str, numbers: range, names: Sequence[str]) -> int:
    return numbers[names.index(text)] if text in names else int(text)
