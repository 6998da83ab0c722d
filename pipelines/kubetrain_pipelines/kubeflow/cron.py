"""When a cron expression of six fields, seconds first, comes true, as Kubeflow Pipelines reckons it.

Its library differs from others: `*/2` counts as a star, so that both day fields must hold; Sunday is 0 alone; a time
that the clocks skip does not come on that day.
"""

import calendar
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Self

from kubetrain_trainer.errors import InvalidSetting

MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
DAYS = dict(zip("sun mon tue wed thu fri sat".split(), range(7), strict=True))
MAX_YEARS = 5
"""What does not come in so many years never comes."""
HOUR, MINUTE = 3600, 60


@dataclass(frozen=True)
class Bounds:
    called: str
    least: int
    most: int
    names: Mapping[str, int]


FIELDS = (
    Bounds("second", 0, 59, {}),
    Bounds("minute", 0, 59, {}),
    Bounds("hour", 0, 23, {}),
    Bounds("day of the month", 1, 31, {}),
    Bounds("month", 1, 12, MONTHS),
    Bounds("day of the week", 0, 6, DAYS),
)


@dataclass(frozen=True)
class Field:
    values: frozenset[int]
    has_star: bool


@dataclass(frozen=True, kw_only=True)
class Cron:
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Raises:
            InvalidSetting: naming the field, and what to write.
        """
        parts = text.split()
        if len(parts) == len(FIELDS) - 1:
            raise InvalidSetting(
                f"cron '{text}' has five fields, which Kubeflow Pipelines would read from the seconds on: "
                f"write '0 {' '.join(parts)}'"
            )
        if len(parts) != len(FIELDS):
            raise InvalidSetting(
                f"cron '{text}' has {len(parts)} fields, not six: second, minute, hour, day of the month, month, "
                "day of the week, as '0 0 2 * * *' for two o'clock each night"
            )
        fields = [_field(part, bounds) for part, bounds in zip(parts, FIELDS, strict=True)]
        names = ("second", "minute", "hour", "day", "month", "weekday")
        return cls(**dict(zip(names, fields, strict=True)))

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """None where that never comes."""
        search = _Search(int(moment.timestamp()) + 1, zone)
        last_year = search.local.year + MAX_YEARS
        while search.local.year <= last_year:
            if self._is_reached_by(search):
                return datetime.fromtimestamp(search.unix, zone)
        return None

    def _is_reached_by(self, search: "_Search") -> bool:
        """From the greatest unit to the least; where one overflows, all must be looked at again."""
        return (
            search.advance(
                lambda at: at.month in self.month.values, _month_begins, _next_month, lambda at: at.month == 1
            )
            and search.advance(self._has_day, _day_begins, _next_day, lambda at: at.day == 1)
            and search.advance_by(HOUR, lambda at: at.hour in self.hour.values, lambda at: at.hour == 0)
            and search.advance_by(MINUTE, lambda at: at.minute in self.minute.values, lambda at: at.minute == 0)
            and search.advance_by(1, lambda at: at.second in self.second.values, lambda at: at.second == 0)
        )

    def _has_day(self, at: datetime) -> bool:
        by_date, by_weekday = at.day in self.day.values, at.isoweekday() % 7 in self.weekday.values
        if self.day.has_star or self.weekday.has_star:
            return by_date and by_weekday
        return by_date or by_weekday


class _Search:
    """A moment that is moved on until it fits."""

    def __init__(self, unix: int, zone: tzinfo) -> None:
        self.unix = unix
        self._zone = zone
        self._has_moved = False

    @property
    def local(self) -> datetime:
        return datetime.fromtimestamp(self.unix, self._zone)

    def advance(
        self,
        fits: Callable[[datetime], bool],
        begin: Callable[[datetime], datetime],
        step: Callable[[datetime], datetime],
        has_overflown: Callable[[datetime], bool],
    ) -> bool:
        """False where it ran into the next greater unit. Dates are those of calendars on the wall."""
        while not fits(self.local):
            if not self._has_moved:
                self.unix = self._unix_of(begin(self.local))
                self._has_moved = True
            self.unix = self._unix_of(step(self.local))
            if has_overflown(self.local):
                return False
        return True

    def advance_by(
        self, seconds: int, fits: Callable[[datetime], bool], has_overflown: Callable[[datetime], bool]
    ) -> bool:
        """As above, by time that really goes by."""
        while not fits(self.local):
            if not self._has_moved:
                offset = _seconds(self.local) if seconds == HOUR else 0
                self.unix -= (self.unix + offset) % seconds
                self._has_moved = True
            self.unix += seconds
            if has_overflown(self.local):
                return False
        return True

    def _unix_of(self, wall: datetime) -> int:
        """A time that the clocks skip or show twice is taken by the offset that counts just before or after it."""
        unix = calendar.timegm(wall.timetuple())
        first = unix - _seconds(datetime.fromtimestamp(unix, self._zone))
        return unix - _seconds(datetime.fromtimestamp(first, self._zone))


def _field(text: str, bounds: Bounds) -> Field:
    values: set[int] = set()
    has_star = False
    for part in filter(None, text.split(",")):
        range_, *steps = part.split("/")
        low, *high = range_.split("-")
        if len(steps) > 1 or len(high) > 1:
            raise _unusable(part, bounds)
        if low in ("*", "?"):
            first, last, has_star = bounds.least, bounds.most, True
        else:
            first = _number(low, bounds)
            last = _number(high[0], bounds) if high else bounds.most if steps else first
        step = _number(steps[0], bounds) if steps else 1
        if not bounds.least <= first <= last <= bounds.most or step == 0:
            raise _unusable(part, bounds)
        values.update(range(first, last + 1, step))
    return Field(frozenset(values), has_star)


def _number(text: str, bounds: Bounds) -> int:
    if text.lower() in bounds.names:
        return bounds.names[text.lower()]
    if not re.fullmatch(r"[0-9]+", text):
        raise _unusable(text, bounds)
    return int(text)


def _unusable(text: str, bounds: Bounds) -> InvalidSetting:
    names = f", names as {'-'.join(list(bounds.names)[1:6:4])}" if bounds.names else ""
    return InvalidSetting(
        f"'{text}' is no {bounds.called} in cron: {bounds.least} to {bounds.most}{names}, with *, -, / and ,"
    )


def _seconds(local: datetime) -> int:
    offset = local.utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _month_begins(at: datetime) -> datetime:
    return _day_begins(at).replace(day=1)


def _next_month(at: datetime) -> datetime:
    naive = at.replace(tzinfo=None)
    return naive.replace(year=at.year + at.month // 12, month=at.month % 12 + 1)


def _day_begins(at: datetime) -> datetime:
    return datetime(at.year, at.month, at.day)


def _next_day(at: datetime) -> datetime:
    return at.replace(tzinfo=None) + timedelta(days=1)
