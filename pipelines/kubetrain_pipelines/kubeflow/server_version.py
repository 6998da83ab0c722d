"""The version of Kubeflow Pipelines at the endpoint, and what older versions cannot do.

Its API server and its UI server, behind a gateway, answer the same question with different fields.
"""

import re
from dataclasses import dataclass
from typing import Self

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError

HEALTH = "/healthz"
VERSION = re.compile(r"v?(\d+)\.(\d+)")
OLDEST = (2, 16)
"""Earlier versions cannot pass a step's settings on to its job, or end the runs of a schedule that is replaced."""


@dataclass(frozen=True, kw_only=True)
class ServerHealth:
    tag: str
    is_multi_user: bool
    is_ready: bool
    """True if the API server answers. The UI server reports its own health even without it."""

    @classmethod
    def of(cls, answer: Message) -> Self:
        return cls(
            tag=str(answer.get("tag_name") or answer.get("apiServerTagName") or ""),
            is_multi_user=bool(answer.get("multi_user")),
            is_ready=bool(answer.get("apiServerReady", True)),
        )

    def is_older_than(self, version: tuple[int, int]) -> bool:
        """Return True if the version is known and older."""
        release = release_of(self.tag)
        return release is not None and release < version


def release_of(tag: str) -> tuple[int, int] | None:
    """Return the major and minor version in the tag of an image or the name of a release, if it has them."""
    match = VERSION.match(tag)
    return (int(match[1]), int(match[2])) if match else None


def read_health(api: KfpApi) -> ServerHealth:
    return ServerHealth.of(api.get(HEALTH))


def check_runs_pipeline(api: KfpApi, content: bytes) -> None:
    """
    Raises:
        KfpError: if the server is too old for a compiled pipeline.
    """
    if b"TASK_CONFIG" in content and (health := read_health(api)).is_older_than(OLDEST):
        raise KfpError(
            f"Kubeflow Pipelines at {api.connection.endpoint} has version {health.tag}, which cannot run these "
            f"pipelines: upgrade to {OLDEST[0]}.{OLDEST[1]} or newer"
        )
