"""Connections within this machine, which bypass the proxy that the user has for others."""

from collections.abc import Mapping

HOST = "127.0.0.1"
LOOPBACK = f"{HOST},localhost"


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep requests to this machine from a proxy, which gRPC and S3 clients would use."""
    return {
        name: f"{environment[name]},{LOOPBACK}" if environment.get(name) else LOOPBACK
        for name in ("NO_PROXY", "no_proxy")
    }
