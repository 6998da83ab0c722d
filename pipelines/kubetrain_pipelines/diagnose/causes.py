"""The causes that the matches of rules amount to, the most likely one first."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kubetrain_components.secret_values import without_secrets
from kubetrain_pipelines.diagnose.rule import Certainty, Rule
from kubetrain_pipelines.diagnose.scan import Match
from kubetrain_pipelines.diagnose.table import FIRST_ERROR, OWN_ERROR, UNKNOWN_FAILURE

TIME = re.compile(r"\d{4}-(\d\d)-(\d\d)[T_ ](\d\d:\d\d:\d\d)|\b[EWIF](\d\d)(\d\d) (\d\d:\d\d:\d\d)", re.ASCII)
"""Month, day and time in a line, as Kubernetes, Python, NCCL and PyTorch write them."""


@dataclass(frozen=True)
class Cause:
    rule: Rule
    certainty: Certainty
    evidence: Match
    others: tuple[str, ...] = ()
    """The other sources that have it."""

    @property
    def is_demoted(self) -> bool:
        """True if the rule proves something only without the causes that were found too."""
        return self.certainty is not self.rule.certainty

    @property
    def quote(self) -> str:
        """The line that proves it, without secrets."""
        return str(without_secrets("", self.evidence.text))

    @property
    def place(self) -> str:
        return f"{self.evidence.source}:{self.evidence.line}" if self.evidence.line else self.evidence.source

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule.name,
            "title": self.rule.title,
            "certainty": self.certainty.words,
            "evidence": self.quote,
            "source": self.place,
            "also_in": list(self.others),
            "explanation": self.rule.explanation,
            "remedy": self.rule.remedy,
        }


def ranked(matches: Iterable[Match], culprits: Sequence[str]) -> list[Cause]:
    """Return the causes: proof before what is only likely, causes before consequences, the earliest first.

    Args:
        matches: In the order of their sources.
        culprits: Sources of the pod that failed first, if it is known.
    """
    matches = _without_explained_errors([*matches])
    found: dict[str, list[Match]] = {}
    for match in matches:
        found.setdefault(match.rule.name, []).append(match)
    current = {name for name, each in found.items() if not all(match.is_overcome for match in each)}
    causes = [_cause(item, current, culprits) for item in found.values() if item[0].rule.needs in ("", *found)]
    is_proven = any(cause.certainty is Certainty.CAUSE for cause in causes)
    hidden = {Certainty.FACT, *([Certainty.UNKNOWN] if is_proven else [])}
    shown = [_in_own_words(cause) for cause in causes if cause.certainty not in hidden]
    known = [cause for cause in shown if cause.rule is not UNKNOWN_FAILURE]
    shown = known if any(cause.certainty < Certainty.SLOW for cause in known) else shown
    errors = {match.source: match.line for match in matches if match.rule is FIRST_ERROR and not match.is_overcome}
    return sorted(shown, key=lambda cause: (_rank(cause, errors), cause.is_demoted, *_age(cause.evidence, culprits)))


def _rank(cause: Cause, errors: Mapping[str, int]) -> float:
    """Return the certainty. What is likely comes after an unknown error to which its process came nevertheless."""
    went_on = cause.evidence.line < errors.get(cause.evidence.source, 0)
    return Certainty.UNKNOWN + 0.5 if cause.certainty is Certainty.LIKELY and went_on else cause.certainty


def _without_explained_errors(matches: Sequence[Match]) -> list[Match]:
    """Leave out unknown errors that come after a proven cause, or the loss of another process, in the same log."""
    known = [match for match in matches if match.rule.certainty in (Certainty.CAUSE, Certainty.EFFECT)]
    begins = {match.source: match.line for match in sorted(known, key=lambda match: -match.line)}
    return [item for item in matches if item.rule is not FIRST_ERROR or item.line < begins.get(item.source, math.inf)]


def _cause(matches: Sequence[Match], found: set[str], culprits: Sequence[str]) -> Cause:
    first, *others = sorted(matches, key=lambda match: (match.is_overcome, *_age(match, culprits)))
    sources = dict.fromkeys(match.source for match in others if match.source != first.source)
    return Cause(first.rule, _certainty(first, found), first, tuple(sources))


def _in_own_words(cause: Cause) -> Cause:
    """Return an unknown error as kubetrain's own, if it is, because its remedy is in its words."""
    is_unknown = cause.rule is FIRST_ERROR and cause.certainty is Certainty.UNKNOWN
    if not is_unknown or not OWN_ERROR.match(cause.evidence.text.encode()):
        return cause
    return replace(cause, rule=OWN_ERROR, certainty=OWN_ERROR.certainty)


def _certainty(match: Match, found: set[str]) -> Certainty:
    if match.is_overcome and match.rule.certainty < Certainty.SLOW:
        return Certainty.OVERCOME
    is_effect = match.rule.certainty < Certainty.EFFECT and not found.isdisjoint(match.rule.after)
    return Certainty.EFFECT if is_effect else match.rule.certainty


def _age(match: Match, culprits: Sequence[str]) -> tuple[bool, str]:
    """Return a sort key. Lines without a time are taken for later ones, because most are."""
    time = TIME.search(match.text)
    return match.source not in culprits, " ".join(filter(None, time.groups())) if time else "~"
