"""Read kubeconfig files as kubectl does: several are merged, and the first that sets a value wins."""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kubetrain_components.jobs.kubernetes.access.connection import AccessError, Connection, ExecPlugin, Material, User
from kubetrain_components.urls import has_host_and_port
from kubetrain_trainer.errors import did_you_mean

CONTEXT_VARIABLE = "KUBETRAIN_CONTEXT"
DEFAULT = Path("~/.kube/config")
EXEC_API = "client.authentication.k8s.io/"
PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields whose relative paths start at the folder of their kubeconfig."""
Entry = Mapping[str, Any]


def find_connection(context: str) -> Connection:
    """Return the connection of $KUBECONFIG, else of this pod, else of the default kubeconfig.

    Args:
        context: Context of the kubeconfig; empty: that of $KUBETRAIN_CONTEXT, else its current one.

    Raises:
        AccessError: if none is configured.
    """
    context = context or os.environ.get(CONTEXT_VARIABLE, "")
    if not os.environ.get("KUBECONFIG") and not context and (of_pod := Connection.of_this_pod()):
        return of_pod
    return Kubeconfig.read().connection(context)


@dataclass(frozen=True, kw_only=True)
class Kubeconfig:
    current: str = ""
    contexts: Mapping[str, Entry] = field(default_factory=dict)
    clusters: Mapping[str, Entry] = field(default_factory=dict)
    users: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Self:
        listed = os.environ.get("KUBECONFIG", "")
        paths = [Path(path) for path in listed.split(os.pathsep) if path] or [DEFAULT.expanduser()]
        if not (existing := [path for path in paths if path.exists()]):
            missing = os.pathsep.join(map(str, paths))
            raise AccessError(
                f"no cluster is configured ({missing} does not exist): set KUBECONFIG, or run in a pod of the cluster"
            )
        merged = cls()
        for path in existing:
            merged = merged._with(path, _parse(path))
        return merged

    def connection(self, context: str = "") -> Connection:
        chosen = self._entry("context", self.contexts, context or self._current())
        cluster = self._entry("cluster", self.clusters, str(chosen.get("cluster", "")))
        user = self._entry("user", self.users, str(chosen["user"])) if chosen.get("user") else {}
        return Connection(
            server=_server(cluster, str(chosen.get("cluster"))),
            namespace=str(chosen.get("namespace") or ""),
            ca=_material(cluster, "certificate-authority"),
            is_verified=not cluster.get("insecure-skip-tls-verify"),
            tls_server_name=str(cluster.get("tls-server-name") or ""),
            proxy_url=str(cluster.get("proxy-url") or ""),
            user=_user(user, cluster),
        )

    def _with(self, path: Path, config: Entry) -> Self:
        try:
            found = {kind: _entries(path, config.get(kind) or [], kind) for kind in ("contexts", "clusters", "users")}
        except (TypeError, KeyError, AttributeError) as error:
            raise AccessError(f"{path} is not a valid kubeconfig: check KUBECONFIG") from error
        merged = {kind: {**entries, **getattr(self, kind)} for kind, entries in found.items()}
        return type(self)(current=self.current or str(config.get("current-context") or ""), **merged)

    def _current(self) -> str:
        if not self.current:
            raise AccessError("the kubeconfig has no current-context: choose one with `kubectl config use-context`")
        return self.current

    def _entry(self, kind: str, entries: Mapping[str, Entry], name: str) -> Entry:
        if name not in entries:
            hint = did_you_mean(name, set(entries)) if entries else "check KUBECONFIG"
            raise AccessError(f"the kubeconfig has no {kind} '{name}': {hint}")
        return entries[name]


def _parse(path: Path) -> Entry:
    import yaml

    try:
        config = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise AccessError(f"cannot read {path} ({error.strerror}): check KUBECONFIG") from error
    except yaml.YAMLError as error:  # its text may quote a token
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise AccessError(f"{path} is not valid YAML{where}: check KUBECONFIG") from None
    if not isinstance(config or {}, Mapping):
        raise AccessError(f"{path} is not a kubeconfig, because it is not a YAML mapping: check KUBECONFIG")
    return config or {}


def _entries(path: Path, listed: list[Entry], kind: str) -> dict[str, Entry]:
    """Return the entries of one file by name, with absolute paths; of the same names the first wins."""
    found = [(str(item["name"]), item.get(kind.removesuffix("s")) or {}) for item in listed]
    return {name: _absolute(entry, path.absolute().parent) for name, entry in reversed(found)}


def _absolute(entry: Entry, folder: Path) -> Entry:
    paths: dict[str, Any] = {name: str(folder / entry[name]) for name in PATHS if entry.get(name)}
    plugin = entry.get("exec") or {}
    if os.sep in str(plugin.get("command", "")):
        paths["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return {**entry, **paths}


def _server(cluster: Entry, name: str) -> str:
    server = str(cluster.get("server") or "")
    if not server.startswith(("https://", "http://")) or not has_host_and_port(server):
        shown = server.rpartition("@")[2]  # without a password
        raise AccessError(f"the server '{shown}' of cluster '{name}' is not a URL: check KUBECONFIG")
    return server.rstrip("/")


def _material(entry: Entry, name: str) -> Material | None:
    """Return what a field, or the file that it names, contains; inline data wins."""
    if data := entry.get(f"{name}-data"):
        try:
            return Material(base64.b64decode(data, validate=True))
        except (binascii.Error, ValueError) as error:
            raise AccessError(f"{name}-data in the kubeconfig is not valid base64: check KUBECONFIG") from error
    return Material(file=Path(entry[name])) if entry.get(name) else None


def _user(user: Entry, cluster: Entry) -> User:
    if user.get("auth-provider") and not user.get("exec"):
        raise AccessError(
            f"the auth-provider '{user['auth-provider'].get('name')}' in the kubeconfig is not supported, because "
            "exec plugins have replaced them: use one, such as kubelogin or gke-gcloud-auth-plugin"
        )
    token = Material(str(user["token"]).encode()) if user.get("token") else None
    return User(
        token=Material(file=Path(user["tokenFile"])) if user.get("tokenFile") else token,
        certificate=_material(user, "client-certificate"),
        key=_material(user, "client-key"),
        name_and_password=f"{user['username']}:{user.get('password', '')}" if user.get("username") else "",
        exec_plugin=_exec_plugin(user["exec"], cluster) if user.get("exec") else None,
        impersonation=_impersonation(user),
    )


def _exec_plugin(plugin: Entry, cluster: Entry) -> ExecPlugin:
    version = str(plugin.get("apiVersion", ""))
    if version not in (f"{EXEC_API}v1", f"{EXEC_API}v1beta1"):
        raise AccessError(
            f"the exec plugin {plugin.get('command')} has apiVersion '{version}': update it, and its entry in the "
            f"kubeconfig, to {EXEC_API}v1"
        )
    return ExecPlugin(
        command=str(plugin["command"]),
        args=tuple(map(str, plugin.get("args") or ())),
        env={item["name"]: str(item["value"]) for item in plugin.get("env") or ()},
        api_version=version,
        install_hint=str(plugin.get("installHint") or ""),
        interactive_mode=str(plugin.get("interactiveMode") or "IfAvailable"),
        cluster=_cluster_info(cluster) if plugin.get("provideClusterInfo") else None,
    )


def _cluster_info(cluster: Entry) -> Mapping[str, Any]:
    """Return the cluster with the certificates themselves, as the plugin's API wants it."""
    known = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    info = {name: cluster[name] for name in known if cluster.get(name)}
    if (ca := _material(cluster, "certificate-authority")) is not None:
        info["certificate-authority-data"] = base64.b64encode(ca.read()).decode()
    extensions = {extension["name"]: extension.get("extension") for extension in cluster.get("extensions") or ()}
    config = extensions.get("client.authentication.k8s.io/exec")
    return {**info, **({"config": config} if config else {})}


def _impersonation(user: Entry) -> list[tuple[str, str]]:
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    for key, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{key}", value) for value in values]
    return [(name, str(value)) for name, value in headers if value]
