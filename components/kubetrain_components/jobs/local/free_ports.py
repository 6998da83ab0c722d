"""Ports of this machine for servers that start later."""

import contextlib
import errno
import random
import socket

NOT_FOR_CLIENTS = range(15000, 30000)
"""The kernel gives none of these to a connection, which could take it before the server has started."""
TAKEN = (errno.EADDRINUSE, errno.EACCES)


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
