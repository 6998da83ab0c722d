"""The logs of pods that Kubeflow Pipelines serves, which depends on what answers at the endpoint.

Its API server has a route of its v1alpha1 API. Its UI server, which a gateway or a port-forward to ml-pipeline-ui leads
to, does not pass this route on, but has one of its own. Both need the name of the pod; the run's details contain the
end of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.run import Run

PROGRAM = "system-container-impl"
# The template of a step with pod annotations or labels has their counts in its name. The usual ones come first.
TEMPLATES = (PROGRAM, *(f"metadata-{counts}-{PROGRAM}" for counts in "1-1 0-1 1-0 1-2 2-1 2-2 0-2 2-0".split()))
HTML = re.compile(r"\s*<(!doctype|html)", re.I)


@dataclass(frozen=True)
class Route:
    path: str
    names_pod: Callable[[Run, str, str], dict[str, Any]]
    """The query, from the run, its namespace and the name of the pod."""
    has_no_log: re.Pattern[str]
    """The answer if the route works but has no log of this pod."""


API_ROUTE = Route(
    "/apis/v1alpha1/runs/{run}/nodes/{pod}/log",
    lambda run, namespace, pod: {},
    re.compile(r'\{"error_message"'),
)
UI_ROUTE = Route(
    "/k8s/pod/logs",
    lambda run, namespace, pod: {
        "podname": pod,
        "runid": run.id,
        "podnamespace": namespace,
        "createdat": f"{run.created:%Y-%m-%d}",
    },
    re.compile(r"Could not get main container logs|pod not found"),
)


class KfpLogs:
    """The logs that Kubeflow Pipelines serves. A failure to serve them is never an error."""

    def __init__(self, api: KfpApi, run: Run) -> None:
        self._api, self._run = api, run
        self._routes = [API_ROUTE, UI_ROUTE]
        self._templates = list(TEMPLATES)

    def read(self, node: str) -> str | None:
        """Return the log of a node's pod; None if it is not served."""
        for route in list(self._routes):
            try:
                text = self._read(route, node)
            except KfpError:
                text = None
            if text is not None:
                self._routes = [route]
                return text
        return None

    def _read(self, route: Route, node: str) -> str | None:
        """Try each name that the node's pod may have."""
        workflow, _, number = node.rpartition("-")
        for template in list(self._templates):
            pod = f"{workflow}-{template}-{number}"
            query = route.names_pod(self._run, self._api.connection.pods_namespace, pod)
            status, text = self._api.peek(route.path.format(run=self._run.id, pod=pod), **query)
            if route.has_no_log.match(text):
                continue
            if status != 200 or HTML.match(text):  # the route does not exist, or may not be used
                return None
            self._templates.remove(template)  # most steps have the same
            self._templates.insert(0, template)
            return text
        return None
