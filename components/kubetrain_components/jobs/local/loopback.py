"""Free ports on this machine, and connections to them, which bypass the proxy that the user has for others."""

import contextlib
import errno
import random
import socket
from collections.abc import Mapping

NOT_FOR_CLIENTS = range(15000, 30000)
"""The kernel gives none of these to a connection, which could take it before the server has started."""
TAKEN = (errno.EADDRINUSE, errno.EACCES)

HOST = "127.0.0.1"
LOOPBACK = f"{HOST},localhost"


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep requests to this machine from a proxy, which gRPC and S3 clients would use."""
    return {
        name: f"{environment[name]},{LOOPBACK}" if environment.get(name) else LOOPBACK
        for name in ("NO_PROXY", "no_proxy")
    }


def free_ports(count: int) -> list[int]:
    """Return different ports that are free now."""
    with contextlib.ExitStack() as sockets:
        ports: list[int] = []
        while len(ports) < count:
            port = random.SystemRandom().choice(NOT_FOR_CLIENTS)
            try:
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                continue
            ports.append(port)
    return ports
