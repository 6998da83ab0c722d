"""The lines of the log that say what a job waits for: one for all pods that wait for the same reason."""

from collections.abc import Iterator

from kubetrain_components.jobs.budgets import Clock
from kubetrain_components.jobs.job_state import JobState, LogLine
from kubetrain_components.jobs.troubles import Trouble, TroubleKind

Key = tuple[TroubleKind, str]
REPEAT_SECONDS = 10.0
"""Min time between two lines about one kind of trouble: pods of a large job get it one after the other."""


class TroubleNotices:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Key, float] = {}
        self._told: set[Key] = set()
        self._told_at: dict[TroubleKind, float] = {}

    def due(self, state: JobState) -> Iterator[LogLine]:
        """Yield a line for each kind of trouble that pods have newly, once it has lasted for a moment."""
        now = self._clock()
        present = {(trouble.kind, trouble.subject): trouble for trouble in state.troubles}
        self._since = {key: self._since.get(key, now) for key in present}
        self._told &= present.keys()
        for kind in dict.fromkeys(trouble.kind for trouble in present.values()):
            fresh = {key: trouble for key, trouble in present.items() if key[0] is kind and key not in self._told}
            if fresh and self._is_due([*fresh.values()], min(map(self._since.__getitem__, fresh)), now):
                self._told |= fresh.keys()
                self._told_at[kind] = now
                yield _line([*fresh.values()], state)

    def _is_due(self, fresh: list[Trouble], since: float, now: float) -> bool:
        kind = fresh[0].kind
        is_repeated = fresh[0].is_of_pod and now - self._told_at.get(kind, -REPEAT_SECONDS) < REPEAT_SECONDS
        return now - since >= kind.value.notice_seconds and not is_repeated


def _line(troubles: list[Trouble], state: JobState) -> LogLine:
    others = len(troubles) - 1
    more = f"; the same for {others} more pod{'s' * (others > 1)}, such as {troubles[-1].subject}" if others else ""
    notice = troubles[0].late_notice if troubles[0].subject in state.late_pods else troubles[0].notice
    return LogLine(troubles[0].subject, notice + more)
