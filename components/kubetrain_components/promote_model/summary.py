"""The Markdown summary on the run's page of a published model: outcome, metrics, origin, and how to use it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubetrain_components.object_store.open_store import without_secrets
from kubetrain_components.promote_model.promote import Promotion
from kubetrain_components.run.markdown import escaped, table
from kubetrain_components.shown_values import number

NOT_PUBLISHED = "no model is published, because train.publishes is false"


def publication_summary(
    promotion: Promotion, conditions_met: Sequence[str], evaluation: Mapping[str, Any], dataset_uri: str, load: str
) -> str:
    """
    Args:
        evaluation: evaluation.json, or at least its metrics and dataset_digest.
        load: How to load the model; empty: only your own program knows its format.
    """
    facts = {
        "model": promotion.uri,
        "dataset": without_secrets(dataset_uri) or "none",
        "dataset version": evaluation["dataset_digest"] or "none",
    }
    parts = [
        f"# Published, {promotion.note or 'now the latest'}\n",
        "".join(f"- {escaped(condition)}\n" for condition in conditions_met),
        table({**dict(_measured(evaluation)), **{name: f"`{escaped(fact)}`" for name, fact in facts.items()}}),
        load,
        _how_to_go_back(promotion.uri, promotion.before) if promotion.before else "",
    ]
    return "\n".join(part for part in parts if part)


def _measured(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in sorted(evaluation["metrics"].items()):
        ends = evaluation.get("intervals", {}).get(name)
        interval = f" (95%: {number(ends[0])} to {number(ends[1])})" if ends and None not in ends else ""
        yield f"test {escaped(name)}", f"{number(value)}{interval}"


def how_to_load(uri: str, endpoint: str) -> str:
    server = f", s3_endpoint={json.dumps(endpoint)}" if endpoint and uri.startswith("s3://") else ""
    call = f"model = kubetrain.load_model({json.dumps(uri)}{server})"
    return f"## Load it\n\n```python\nimport kubetrain\n\n{call}\n```\n"


def _how_to_go_back(uri: str, before: str) -> str:
    models = uri.rstrip("/").rpartition("/")[0]
    return f"## Go back\n\nReplace `{models}/latest.json` by a copy of `{models}/{before}/model.json`.\n"
