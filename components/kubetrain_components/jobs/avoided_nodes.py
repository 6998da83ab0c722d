"""The nodes that the attempts of a job avoid, because the preflight of an earlier attempt found them to be bad.

Each attempt has them in an annotation, so that they add up, also if another launcher makes the next attempt.
"""

import re
from collections.abc import Iterable

from kubetrain_components.jobs.annotations import AVOIDED_NODES_ANNOTATION
from kubetrain_components.jobs.job_state import JobState, PodState
from kubetrain_trainer.termination import parse_termination_message

NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def avoided_by(state: JobState) -> tuple[str, ...]:
    """Return the nodes in the job's annotation."""
    return tuple(filter(None, state.annotations.get(AVOIDED_NODES_ANNOTATION, "").split(",")))


def to_avoid_after(state: JobState, pod: PodState) -> tuple[str, ...]:
    """Return the nodes that the next attempt avoids if this pod made the job fail; empty if it found no bad ones."""
    found = _found_by(pod)
    return merged(avoided_by(state), found) if found else ()


def _found_by(pod: PodState) -> tuple[str, ...]:
    found = parse_termination_message(pod.last_words).get("avoid_nodes")
    names = found if isinstance(found, list) else []
    return tuple(name for name in names if isinstance(name, str) and NODE_NAME.fullmatch(name))


def merged(*nodes: Iterable[str]) -> tuple[str, ...]:
    """Return each node once."""
    return tuple(dict.fromkeys(name for names in nodes for name in names))


def as_annotation(nodes: Iterable[str]) -> dict[str, str]:
    """Return the annotation with which an attempt is created, or replaces the one that it has."""
    return {AVOIDED_NODES_ANNOTATION: text} if (text := ",".join(nodes)) else {}
