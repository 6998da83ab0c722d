"""Run a plugin that prints credentials (client.authentication.k8s.io), as kubectl does."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any

from kubetrain_components.jobs.kubernetes.access.connection import AccessError, ExecPlugin

TIMEOUT_SECONDS = 60.0
LOGIN_TIMEOUT_SECONDS = 300.0
"""Timeout of a plugin that may ask its user to log in."""
MAX_QUOTED = 500


@dataclass(frozen=True, kw_only=True)
class PluginCredential:
    token: bytes = field(default=b"", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    expires: datetime | None = None

    @property
    def is_expired(self) -> bool:
        return self.expires is not None and datetime.now(UTC) >= self.expires


def run_plugin(plugin: ExecPlugin) -> PluginCredential:
    """
    Raises:
        AccessError: with the plugin's own words, if it gives no credential.
    """
    is_interactive = _is_interactive(plugin)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        # Files, not pipes: a process that the plugin leaves behind would keep a pipe open.
        process = _start(plugin, is_interactive, output, errors)
        code = _await_end(plugin, process, LOGIN_TIMEOUT_SECONDS if is_interactive else TIMEOUT_SECONDS)
        output.seek(0)
        errors.seek(0)
        printed, complaint = output.read(), errors.read().decode(errors="replace").strip()[-MAX_QUOTED:]
    if code != 0:
        raise AccessError(
            f"{_name(plugin)} failed with exit code {code}{f' ({complaint})' if complaint else ''}: "
            "log in to the cluster again, or run it by hand to see why"
        )
    return _parse(plugin, printed)


def _is_interactive(plugin: ExecPlugin) -> bool:
    """Return whether the plugin may ask its user."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not is_terminal:
        raise AccessError(f"{_name(plugin)} needs a terminal (its interactiveMode is Always): start this in one")
    return is_terminal and plugin.interactive_mode != "Never"


def _start(plugin: ExecPlugin, is_interactive: bool, output: IO[bytes], errors: IO[bytes]) -> "subprocess.Popen[bytes]":
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.cluster is not None:
        spec["cluster"] = plugin.cluster
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    try:
        return subprocess.Popen(
            [plugin.command, *plugin.args],
            env={**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            stdin=None if is_interactive else subprocess.DEVNULL,
            stdout=output,
            stderr=None if is_interactive else errors,
            # A group of its own can be killed as a whole, but may not read from the terminal.
            start_new_session=not is_interactive,
        )
    except OSError as error:
        hint = f": {plugin.install_hint.strip()}" if plugin.install_hint else ": install it, or correct your PATH"
        raise AccessError(f"{_name(plugin)} cannot be started ({error.strerror}){hint}") from error


def _await_end(plugin: ExecPlugin, process: "subprocess.Popen[bytes]", timeout: float) -> int:
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired as error:
        raise AccessError(
            f"{_name(plugin)} printed no credential within {timeout:.0f} s: run it by hand to see what it waits for"
        ) from error
    finally:  # also after an interrupt
        _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _parse(plugin: ExecPlugin, printed: bytes) -> PluginCredential:
    try:
        credential: Mapping[str, Any] = json.loads(printed)
        status = credential["status"]
        version, expires = credential["apiVersion"], status.get("expirationTimestamp")
        found = PluginCredential(
            token=(status.get("token") or "").encode(),
            certificate=(status.get("clientCertificateData") or "").encode(),
            key=(status.get("clientKeyData") or "").encode(),
            expires=_time(expires) if expires else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # its text may quote a token
        raise AccessError(f"{_name(plugin)} did not print an ExecCredential: check what it prints") from None
    if version != plugin.api_version:
        raise AccessError(f"{_name(plugin)} prints apiVersion {version}, but the kubeconfig says {plugin.api_version}")
    if not found.token and not (found.certificate and found.key):
        raise AccessError(f"{_name(plugin)} printed neither a token nor a certificate with its key: log in again")
    return found


def _time(text: str) -> datetime:
    """Read a time; one without a time zone is in UTC."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _name(plugin: ExecPlugin) -> str:
    return f"the exec plugin {plugin.command} of the kubeconfig"
