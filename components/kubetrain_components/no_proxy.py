"""NO_PROXY, read as Go and so kubectl does; S3 reads it as boto3 does."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def environment_proxy(url: str, environment: Mapping[str, str]) -> str:
    """Return the proxy that the environment sets for a URL; empty if there is none."""
    if bypasses_proxy(url, _variable("NO_PROXY", environment)):
        return ""
    return _variable(f"{urlsplit(url).scheme.upper()}_PROXY", environment)


def _variable(name: str, environment: Mapping[str, str]) -> str:
    return environment.get(name) or environment.get(name.lower(), "")


def bypasses_proxy(url: str, no_proxy: str) -> bool:
    """Return True if requests to this URL go directly: to this machine, or to a host that NO_PROXY excludes."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]
    entries = (entry.strip().lower() for entry in no_proxy.split(","))
    return _is_local(host) or any(_matches(entry, host, port) for entry in entries if entry)


def _matches(entry: str, host: str, port: int) -> bool:
    """Return True if an entry of NO_PROXY covers the host: *, an address, a CIDR, or a domain, with or without port."""
    if entry == "*":
        return True
    if (address := _address(host)) is not None and "/" in entry:
        return _contains(entry, host)
    name, colon, only_port = entry.rpartition(":")
    is_bare_ipv6 = ":" in name and not name.endswith("]")
    if colon and only_port.isascii() and only_port.isdecimal() and not is_bare_ipv6:
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
