"""Markdown on a step's page in the Kubeflow Pipelines UI."""

import re
from collections.abc import Mapping

ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;"}


def table(facts: Mapping[str, str]) -> str:
    rows = "".join(f"| {fact} | {value} |\n" for fact, value in facts.items())
    return f"| | |\n| --- | --- |\n{rows}"


def escaped(text: object) -> str:
    """Return what others wrote as text that changes neither the table nor the page."""
    return re.sub(r"[`|<>]|\s+", lambda found: " " if found[0].isspace() else ENTITIES.get(found[0], "'"), str(text))
