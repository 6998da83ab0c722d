"""A Kubernetes API server that lists objects by one label, as the commands for runs do."""

from typing import Any

from support.api_server import COLLECTIONS, Handler

KINDS = ("workflows", *COLLECTIONS)


class LabelHandler(Handler):
    """Lists the objects with the label that is selected, or all of them."""

    def _is_collection(self) -> bool:
        return self.parts.path.rsplit("/", 1)[-1] in KINDS

    def _is_selected(self, item: dict[str, Any]) -> bool:
        key, _, value = self.query.get("labelSelector", "").partition("=")
        return not key or item["metadata"].get("labels", {}).get(key) == value
