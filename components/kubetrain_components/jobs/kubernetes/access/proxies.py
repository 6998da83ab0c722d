"""The proxy for a server, by the environment's variables, read as Go and so kubectl does."""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from kubetrain_components.jobs.kubernetes.access.connection import AccessError

PORTS = {"http": 80, "https": 443}
SCHEMES = ("http", "https")


def proxy_for(server: str, proxy_url: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the proxy; empty if there is none.

    Args:
        proxy_url: The kubeconfig's, which wins over the environment.

    Raises:
        AccessError: if the proxy is of an unsupported kind.
    """
    found = proxy_url or _of_environment(server, environment)
    proxy = found if "://" in found or not found else f"http://{found}"
    if proxy and (scheme := urlsplit(proxy).scheme) not in SCHEMES:
        raise AccessError(f"proxies of the kind {scheme}:// are not supported: set an http:// or https:// proxy")
    return proxy


def _of_environment(server: str, environment: Mapping[str, str]) -> str:
    url = urlsplit(server)
    host, port = (url.hostname or "").rstrip("."), url.port or PORTS[url.scheme]
    if _is_local(host) or any(_matches(entry, host, port) for entry in _excluded(environment)):
        return ""
    return _variable(f"{url.scheme.upper()}_PROXY", environment)


def _excluded(environment: Mapping[str, str]) -> Iterator[str]:
    for entry in _variable("NO_PROXY", environment).split(","):
        if entry.strip():
            yield entry.strip().lower()


def _matches(entry: str, host: str, port: int) -> bool:
    """Return True if an entry of NO_PROXY covers the host: *, an address, a CIDR, or a domain, with or without port."""
    if entry == "*":
        return True
    if (address := _address(host)) is not None and "/" in entry:
        return _contains(entry, host)
    name, colon, only_port = entry.rpartition(":")
    is_bare_ipv6 = ":" in name and not name.endswith("]")
    if colon and only_port.isdigit() and not is_bare_ipv6:
        if int(only_port) != port:
            return False
        entry = name
    if address is not None:
        return _address(entry.strip("[]")) == address
    entry = entry.removeprefix("*")
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")


def _contains(network: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _variable(name: str, environment: Mapping[str, str]) -> str:
    return environment.get(name) or environment.get(name.lower(), "")
