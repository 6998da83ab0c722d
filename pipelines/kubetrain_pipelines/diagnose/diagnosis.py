"""A diagnosis: what was read, and the causes found in it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kubetrain_pipelines.diagnose.case import Case, Outcome
from kubetrain_pipelines.diagnose.causes import Cause, ranked
from kubetrain_pipelines.diagnose.nccl_rules import MIXED_VERSIONS, STRAGGLER, VERSIONS, WORK
from kubetrain_pipelines.diagnose.rule import Certainty
from kubetrain_pipelines.diagnose.scan import LogScan, Match

FOUND_CODE, UNKNOWN_CODE = 1, 3


@dataclass(frozen=True)
class Diagnosis:
    case: Case
    causes: list[Cause]

    @property
    def exit_code(self) -> int:
        if any(cause.certainty < Certainty.SLOW for cause in self.causes):
            return FOUND_CODE
        is_unknown = self.case.outcome is Outcome.FAILED or self.case.gaps
        return UNKNOWN_CODE if is_unknown and self.case.outcome is not Outcome.SUCCEEDED else 0


def diagnose(case: Case) -> Diagnosis:
    matches = [*_matches(case)]
    causes = ranked([*matches, *stragglers(matches), *mixed_versions(matches)], case.culprits)
    if case.outcome is Outcome.SUCCEEDED:  # the other failures in its logs were overcome
        causes = [cause for cause in causes if cause.certainty is Certainty.SLOW]
    return Diagnosis(case, causes)


def _matches(case: Case) -> Iterator[Match]:
    for source, text in case.statements:
        scan = LogScan(source, is_log=False)
        scan.add(" ".join(text.split()).encode())
        yield from scan.matches()
    for source, path in case.logs.items():
        try:
            yield from LogScan(source).read(path).matches()
        except OSError as error:
            case.note_gap(f"{path}: {error.strerror}")


def mixed_versions(matches: Iterable[Match]) -> Iterator[Match]:
    """Yield a line for each kind of version that differs."""
    known = [match for match in matches if match.rule in VERSIONS and not match.is_overcome]
    for rule in VERSIONS:
        by_version = {_version(match): match for match in reversed(known) if match.rule is rule}
        if len(by_version) > 1:
            (version, match), (other, elsewhere), *_ = reversed(by_version.items())
            text = f"{version} in one log, {other} in {elsewhere.source}"
            yield Match(MIXED_VERSIONS, match.source, match.line, text)


def _version(match: Match) -> str:
    found = match.rule.match(match.text.encode())
    assert found is not None
    return found[1].decode()


def stragglers(matches: Iterable[Match]) -> Iterator[Match]:
    """Yield, for each group of processes, the rank that has started fewer operations than another."""
    groups: dict[str, dict[str, tuple[int, Match]]] = {}
    for match in matches:
        if match.rule is WORK and not match.is_overcome:
            group, rank, work = _report(match)
            groups.setdefault(group, {})[rank] = (work, match)
    for ranks in groups.values():
        last, first = (choose(ranks, key=lambda rank: ranks[rank][0]) for choose in (min, max))
        (fewest, match), (most, _) = ranks[last], ranks[first]
        if fewest < most:
            text = f"rank {last} has started {fewest} collective operations, and rank {first} has started {most}"
            yield Match(STRAGGLER, match.source, match.line, text)


def _report(match: Match) -> tuple[str, str, int]:
    """Return the group of a report, the rank in it, and the number of operations that this rank has started."""
    found = WORK.match(match.text.encode())
    assert found is not None
    group, _, rank = found[1].decode().rpartition("Rank ")
    return group, rank, int(found[2])
