"""Lines of the log that say the same of many pods."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_trainer.some_of import MAX_NAMED, some_of


def together(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield one line to show for many pods. The others are only kept, in case their pod fails."""
    by_text: defaultdict[str, list[LogLine]] = defaultdict(list)
    for line in lines:
        by_text[line.text].append(line)
    for same in by_text.values():
        yield from same if len(same) <= MAX_NAMED else _one_for_all(*same)


def _one_for_all(first: LogLine, *others: LogLine) -> Iterator[LogLine]:
    named = some_of([each.pod for each in others])
    yield replace(first, text=f"{first.text}; the same for {len(others)} more pods: {named}")
    for each in others:
        yield replace(each, is_sampled=True)
