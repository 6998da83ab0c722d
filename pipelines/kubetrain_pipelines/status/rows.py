"""The lines that show a snapshot. Pure functions."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from kubetrain_components.jobs.job_state import Phase, PodState
from kubetrain_components.jobs.troubles import Trouble, TroubleKind
from kubetrain_components.shown_values import describe_seconds
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.requests.run_view import progress_parts
from kubetrain_pipelines.status.snapshot import JobSnapshot, Progress, Snapshot

WIDTH = 80
NO_BREAK = "\N{NO-BREAK SPACE}"
LABEL_WIDTH = 9
MAX_PODS = 10
OLD_SECONDS = 30.0
"""Age from which it is said how old the progress is."""


@dataclass(frozen=True)
class Row:
    key: str
    """Identifies the row: one with the same key replaces it."""
    text: str
    clock: str = ""
    """The end of the row, which changes only because time passes."""
    hang: int = 4
    """Indentation of its further lines."""

    @property
    def plain(self) -> str:
        """The row on one line, without columns."""
        return " ".join(f"{self.text}{self.clock}".split())

    @property
    def news(self) -> str:
        """The text to compare with that of the row before: a difference is worth a new line."""
        return " ".join(self.text.split())


def wrapped(rows: Iterable[Row], width: int = WIDTH) -> list[str]:
    """Return the lines of the rows, broken between parts rather than in them."""
    lines = [line for row in rows for line in _wrap(row, width)]
    return [line.replace(NO_BREAK, " ") for line in lines]


def _wrap(row: Row, width: int) -> list[str]:
    return textwrap.wrap(f"{row.text}{row.clock}", width, subsequent_indent=" " * row.hang, break_on_hyphens=False)


def rows_of(snapshot: Snapshot, now: float) -> list[Row]:
    """
    Args:
        now: The time, in seconds since the epoch.
    """
    rows = [*_run_rows(snapshot.run)] if snapshot.run else []
    rows += [Row(f"waiting {sentence}", f"waiting: {sentence}") for sentence in snapshot.waiting]
    for job in snapshot.jobs:
        rows += _job_rows(job, now)
    rows += [Row(f"cause {cause}", f"cause: {cause}") for cause in snapshot.causes]
    return rows + [Row(f"gap {gap}", f"could not be read: {gap}") for gap in dict.fromkeys(snapshot.gaps)]


def local_time(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _run_rows(run: Run) -> Iterator[Row]:
    head = f"run {run.id} ({run.name}): {run.state}, started {local_time(run.created)}"
    yield Row("run", head, f", {describe_seconds(run.seconds)}")
    width = max((len(stage.title) for stage in run.stages), default=0)
    for stage in run.stages:
        text = f"  {stage.title:<{width}}  {stage.state:<9}"
        yield Row(f"stage {stage.place}", text, f"  {describe_seconds(stage.seconds):>9}")


def _job_rows(job: JobSnapshot, now: float) -> Iterator[Row]:
    yield Row(f"job {job.name}", f"job {job.name} ({job.state.handle.kind}): {job.phase}")
    yield from _pod_rows(job)
    if job.cause:
        yield _labeled(job, "cause", job.cause)
    if job.has_ended:
        return
    for kind, troubles in _by_kind(job.state.troubles).items():
        yield _labeled(job, "waiting", _describe_troubles(troubles), key=kind.name)
    if job.progress:
        yield _labeled(job, "progress", _describe_progress(job.progress), _describe_age(job.progress, now))
    elif job.state.is_under_way:
        yield _labeled(job, "progress", "not reported so far")


def _labeled(job: JobSnapshot, label: str, text: str, clock: str = "", key: str = "") -> Row:
    return Row(f"{label} {key} {job.name}", f"  {label:<{LABEL_WIDTH}}  {text}", clock, hang=LABEL_WIDTH + 4)


def _pod_rows(job: JobSnapshot) -> Iterator[Row]:
    """Yield a row for each pod, or for the most remarkable pods of many, and one for the others."""
    pods = sorted(job.state.pods, key=_is_unremarkable) if len(job.state.pods) > MAX_PODS else job.state.pods
    width = max((len(pod.name) for pod in pods[:MAX_PODS]), default=0)
    for pod in pods[:MAX_PODS]:
        parts = [f"  {pod.name:<{max(width, LABEL_WIDTH)}}", pod.phase.value, job.nodes.get(pod.name, "-")]
        yield Row(f"pod {pod.name} {job.name}", "  ".join([*parts, *_incidents(pod)]))
    if others := Counter(pod.phase.value for pod in pods[MAX_PODS:]):
        counts = ", ".join(f"{count} {phase}" for phase, count in others.items())
        yield Row(f"pods {job.name}", f"  and {others.total()} more: {counts}")


def _is_unremarkable(pod: PodState) -> bool:
    return pod.phase is Phase.RUNNING and not pod.restarts


def _incidents(pod: PodState) -> Iterator[str]:
    if pod.restarts:
        yield f"{pod.restarts} restart{'s' * (pod.restarts > 1)}"
    if pod.phase is Phase.FAILED and pod.exit_code is not None:
        yield f"exit code {pod.exit_code}"
    if pod.is_terminating:
        yield "terminating"


def _by_kind(troubles: Iterable[Trouble]) -> dict[TroubleKind, list[Trouble]]:
    found: dict[TroubleKind, list[Trouble]] = {}
    for trouble in troubles:
        found.setdefault(trouble.kind, []).append(trouble)
    return found


def _describe_troubles(troubles: Sequence[Trouble]) -> str:
    """Describe troubles of one kind."""
    others = len(troubles) - 1
    return troubles[0].failure + (f"; the same for {others} more pod{'s' * (others > 1)}" if others else "")


def _describe_progress(progress: Progress) -> str:
    values = progress.values
    waited, left = values.get("data_wait_share"), values.get("seconds_left")
    parts = [*progress_parts(values)]
    if "step" in values:
        parts.append(f"data wait {f'{waited:.0%}' if isinstance(waited, float) else 'unknown'}")
        parts.append(f"time left {_seconds(left)}")
    return _joined(parts)


def _describe_age(progress: Progress, now: float) -> str:
    """Describe what would be lost now, and how old the progress is if it is old."""
    age = None if progress.reported is None else max(now - progress.reported, 0.0)
    saved = progress.values.get("checkpoint_age_seconds")
    unsaved = saved + age if isinstance(saved, float) and age is not None else None
    parts = [f"unsaved {_seconds(unsaved)}"] if "step" in progress.values else []
    if age is not None and age >= OLD_SECONDS:
        parts.append(f"reported {describe_seconds(age)} ago")
    return " · " + _joined(parts) if parts else ""


def _seconds(value: str | float | None) -> str:
    return describe_seconds(value) if isinstance(value, float) else "unknown"


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(part.replace(" ", NO_BREAK) for part in parts)
