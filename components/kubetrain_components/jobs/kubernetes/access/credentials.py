"""The current credential of a user: read from files at each use, and asked of an exec plugin when it has expired."""

import base64
import threading
import time
from dataclasses import dataclass, field

from kubetrain_components.jobs.kubernetes.access.connection import AccessError, ExecPlugin, Material, User
from kubetrain_components.jobs.kubernetes.access.exec_plugin import PluginCredential, run_plugin

FAILURE_SECONDS = 5.0
"""A plugin that failed is not run again for this long: hundreds of threads may ask."""


@dataclass(frozen=True, kw_only=True)
class Credential:
    authorization: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    plugins: PluginCredential | None = None
    """The output of the exec plugin, if there is one."""


class Credentials:
    """The credentials of one user, for any number of threads."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._lock = threading.Lock()
        self._plugins: PluginCredential | None = None
        self._failure: AccessError | None = None
        self._failed_at = 0.0

    def current(self) -> Credential:
        """
        Raises:
            AccessError: if a file is missing, or the plugin fails.
        """
        user, plugins = self._user, self._from_plugin()
        token = (plugins.token if plugins else b"") or _content(user.token)
        basic = base64.b64encode(user.name_and_password.encode()).decode()
        authorization = f"Bearer {token.decode().strip()}" if token else f"Basic {basic}" if basic else ""
        has_certificate = plugins is not None and plugins.certificate
        return Credential(
            authorization=authorization,
            certificate=plugins.certificate if plugins and has_certificate else _content(user.certificate),
            key=plugins.key if plugins and has_certificate else _content(user.key),
            plugins=plugins,
        )

    def renew(self, rejected: Credential) -> bool:
        """Discard a credential that the server rejected; return True if the next one may be another."""
        with self._lock:
            if rejected.plugins is not None and self._plugins is rejected.plugins:
                self._plugins = None
        return rejected.plugins is not None or self.current() != rejected

    def _from_plugin(self) -> PluginCredential | None:
        if self._user.exec_plugin is None:
            return None
        with self._lock:
            if self._plugins is None or self._plugins.is_expired:
                self._plugins = self._run(self._user.exec_plugin)
            return self._plugins

    def _run(self, plugin: ExecPlugin) -> PluginCredential:
        if self._failure is not None and time.monotonic() - self._failed_at < FAILURE_SECONDS:
            raise self._failure
        try:
            found = run_plugin(plugin)
        except AccessError as error:
            self._failure, self._failed_at = error, time.monotonic()
            raise
        self._failure = None
        return found


def _content(material: Material | None) -> bytes:
    return b"" if material is None else material.read()
