"""The node of this process, by which warnings name slow links and devices."""

import os
import socket

VARIABLE = "NODE_NAME"
"""The environment variable that Kubernetes sets in the pods of trainings."""


def node_name() -> str:
    """Return the name of this process's node; outside Kubernetes, that of its host."""
    return os.environ.get(VARIABLE) or socket.gethostname()
