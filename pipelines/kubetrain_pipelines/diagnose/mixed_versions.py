"""Versions of NCCL and of the driver that differ between the logs of a training."""

from collections.abc import Iterable, Iterator

from kubetrain_pipelines.diagnose.nccl_rules import MIXED_VERSIONS, VERSIONS
from kubetrain_pipelines.diagnose.scan import Match


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
