"""The names of a workflow's nodes, which the API of Kubeflow Pipelines leaves out.

Argo names a node by its place, such as train-x(0).root(0).sync-dataset(0).executor(0), where a number in parentheses
counts attempts, and derives the node's ID from this name. The API gives only the last part of each name, and the IDs of
each node's children. Together they give every name, from the workflow downwards.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

EXECUTOR = "executor"
"""The node that runs the program of a step; the same in every step."""
ATTEMPT = re.compile(r"\((\d+)\)")
LAST_ATTEMPT = re.compile(r"\(\d+\)$")
ITERATION = re.compile(r"\((\d+):[^()]*\)")
FNV_OFFSET, FNV_PRIME, WORD = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def node_names(details: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the name of each node that is another's child, by ID."""
    details = list(details)
    ids = {child["pod_name"] for detail in details for child in detail.get("child_tasks", []) if "pod_name" in child}
    workflow = next(iter(ids), "").rpartition("-")[0]
    parts = list(_parts({item["display_name"] for item in details}))
    names: dict[str, str] = {}
    waiting = [(workflow, fnv1a(workflow))]
    while waiting:
        parent, parent_hash = waiting.pop()
        for part, part_hash in _children(parent_hash, parts, f"{workflow}-", ids):
            if (found := f"{workflow}-{part_hash}") not in names:
                names[found] = parent + part
                waiting.append((parent + part, part_hash))
    return names


def place_of(name: str) -> str:
    """Return the place of a node in the pipeline: its name without the numbers of attempts."""
    return ATTEMPT.sub("", name)


def step_of(name: str) -> str:
    """Return the place of the step that a node belongs to."""
    return place_of(name).removesuffix(f".{EXECUTOR}")


def attempts_in(name: str) -> list[int]:
    return [int(number) for number in ATTEMPT.findall(name)]


def fnv1a(text: str, start: int = FNV_OFFSET) -> int:
    for byte in text.encode():
        start = ((start ^ byte) * FNV_PRIME) & WORD
    return start


def _parts(display_names: set[str]) -> Iterator[list[str]]:
    """Yield what may be appended to a name; iterations of one loop together, the first one first."""
    yield from ([attempt] for attempt in sorted({item[0] for item in map(LAST_ATTEMPT.search, display_names) if item}))
    titles = sorted({LAST_ATTEMPT.sub("", name) for name in display_names}, key=_iteration)
    yield from ([f".{item}" for item in group] for _, group in groupby(titles, key=lambda each: _iteration(each)[0]))


def _iteration(title: str) -> tuple[str, int]:
    match = ITERATION.search(title)
    return (title[: match.start()], int(match[1])) if match else (title, -1)


def _children(parent: int, parts: list[list[str]], prefix: str, ids: set[str]) -> Iterator[tuple[str, int]]:
    for group in parts:
        for part in group:
            if f"{prefix}{(part_hash := fnv1a(part, parent))}" not in ids:
                break
            yield part, part_hash
