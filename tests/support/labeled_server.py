"""A Kubernetes API server that lists objects by one label, as the commands for runs do."""

from support.api_server import JOBS, Handler

KINDS = ("pods", "workflows", *JOBS)


class LabelHandler(Handler):
    """Lists the objects with the label that is selected."""

    def _is_collection(self) -> bool:
        return self.parts.path.rsplit("/", 1)[-1] in KINDS

    def _send_list(self) -> None:
        key, _, value = self.query["labelSelector"].partition("=")
        found = [
            each
            for path, each in self.api.objects.items()
            if path.startswith(f"{self.parts.path}/") and each["metadata"].get("labels", {}).get(key) == value
        ]
        self.send_json(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": found})
