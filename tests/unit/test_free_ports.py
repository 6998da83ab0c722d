"""Ports for servers that start later."""

import errno
import random
import socket

import pytest

from kubetrain_components.jobs.local.loopback import NOT_FOR_CLIENTS, free_ports


def test_the_ports_are_different_and_no_client_gets_them() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert set(ports) <= set(NOT_FOR_CLIENTS)


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_ports(1)[0]
    with socket.create_server(("127.0.0.1", 0)) as server:
        choices = [server.getsockname()[1], free]
        monkeypatch.setattr(random.SystemRandom, "choice", lambda *_: choices.pop(0))
        assert free_ports(1) == [free]


def test_a_lack_of_file_descriptors_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        free_ports(1)
