"""A connection to a cluster, as plain values: what a kubeconfig or a pod's service account says."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kubetrain_trainer.errors import KubetrainError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class AccessError(KubetrainError):
    """The cluster cannot be accessed with this configuration."""


@dataclass(frozen=True)
class Material:
    """A token, certificate or key. Files are read at each use, because they are rotated."""

    content: bytes = field(default=b"", repr=False)
    file: Path | None = None

    def read(self) -> bytes:
        if self.file is None:
            return self.content
        try:
            return self.file.read_bytes()
        except FileNotFoundError as error:
            raise AccessError(
                f"{self.file} does not exist: log in to the cluster again, or check KUBECONFIG"
            ) from error


@dataclass(frozen=True, kw_only=True)
class ExecPlugin:
    """A command that prints credentials, as in the `exec` of a kubeconfig's user."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_version: str
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    cluster: Mapping[str, Any] | None = None
    """The cluster as the plugin gets it; None: it does not ask for it."""


@dataclass(frozen=True, kw_only=True)
class User:
    token: Material | None = None
    certificate: Material | None = None
    key: Material | None = None
    name_and_password: str = field(default="", repr=False)
    exec_plugin: ExecPlugin | None = None
    impersonation: Sequence[tuple[str, str]] = ()
    """Headers that name the account to act as."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    server: str
    namespace: str = ""
    ca: Material | None = None
    """None: the system's certificates."""
    is_verified: bool = True
    tls_server_name: str = ""
    proxy_url: str = ""
    """Empty: that of the environment."""
    user: User = User()

    @classmethod
    def of_this_pod(cls) -> Self | None:
        """Return the connection of the pod's service account; None outside of pods, and in pods without a token."""
        token, host = SERVICE_ACCOUNT / "token", os.environ.get("KUBERNETES_SERVICE_HOST", "")
        if not host or not token.exists():
            return None
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        return cls(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            namespace=(SERVICE_ACCOUNT / "namespace").read_text().strip(),
            ca=Material(file=SERVICE_ACCOUNT / "ca.crt"),
            user=User(token=Material(file=token)),
        )
