"""Checks of the settings of a rendezvous through etcd: where it is, and the files for TLS."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Self

from kubetrain_trainer.errors import InvalidSetting, did_you_mean

ETCD_BACKEND = "etcd-v2"
BACKENDS = ("c10d", ETCD_BACKEND)
ETCD_STAGE = "etcd"
"""The stage in the labels and annotations of an etcd."""
PORT = 2379
ENDPOINT = re.compile(
    r"(?:(?P<protocol>https?)://)?(?P<host>[a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?)(?::(?P<port>\d+))?/?"
)
"""No IPv6 address: torchrun's client of etcd cannot read one."""
WHOLE_NUMBERS = (
    *(f"{name}_timeout" for name in ("join", "last_call", "close", "heartbeat", "read")),
    *("keep_alive_interval", "keep_alive_max_attempt"),
)
"""Settings of torchrun's rendezvous, most of them in seconds."""
CA, CERTIFICATE, KEY = "ca_cert", "ssl_cert", "ssl_cert_key"
SECRET_VOLUMES = ("secret", "projected", "csi")
"""Volumes that can hold a key."""


@dataclass(frozen=True)
class Endpoint:
    protocol: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        found = ENDPOINT.fullmatch(text)
        if found is None or not 0 < int(found["port"] or PORT) < 2**16:
            shown = "the one given" if "@" in text else f"'{text}'"  # it may hold a password
            raise InvalidSetting(
                f"pods.rendezvous.endpoint must be HOST:PORT, http://HOST:PORT or https://HOST:PORT, not {shown}: "
                "torchrun takes one address without user, password or path"
            )
        return cls(found["protocol"] or "http", found["host"], int(found["port"] or PORT))


def check_rendezvous(
    backend: str, endpoint: str, image: str, conf: Mapping[str, Any], volumes: Sequence[Any], mounts: Sequence[Any]
) -> None:
    """
    Args:
        volumes: Volumes of the placement, whose shapes have been checked, as those of its mounts.

    Raises:
        InvalidSetting: if a setting has no effect or no value, or TLS would not work with these.
    """
    has_tls = bool(endpoint) and Endpoint.parse(endpoint).protocol == "https"
    if backend not in BACKENDS:
        raise InvalidSetting(f"pods.rendezvous.backend cannot be '{backend}': {did_you_mean(backend, BACKENDS)}")
    if endpoint and backend != ETCD_BACKEND:
        raise InvalidSetting(f"pods.rendezvous.endpoint '{endpoint}' has no effect: set backend to {ETCD_BACKEND}")
    if backend == ETCD_BACKEND and not endpoint and not image:
        raise InvalidSetting("pods.rendezvous.image is empty: set it to an image of etcd 3.4 or 3.5, or set endpoint")
    for name in WHOLE_NUMBERS:
        if name in conf and not (str(conf[name]).isdecimal() and int(conf[name])):
            raise InvalidSetting(f"pods.rendezvous.{name} must be a whole number above 0, not '{conf[name]}'")
    if "protocol" in conf:
        raise InvalidSetting("pods.rendezvous must not set protocol: write endpoint as https://HOST:PORT")
    files = {name: str(conf[name]) for name in (CA, CERTIFICATE, KEY) if name in conf}
    if files and not has_tls:
        raise InvalidSetting(
            f"pods.rendezvous.{min(files)} has no effect without TLS: set endpoint to https://HOST:PORT"
        )
    for name, path in files.items():
        if not path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise InvalidSetting(
                f"pods.rendezvous.{name} must be the absolute path, without .., of a file in the pods: mount a secret "
                "in pods.pod"
            )
        if name != CA and not _is_secret(path, volumes, mounts):
            raise InvalidSetting(
                f"pods.rendezvous.{name} '{path}' is not in a mounted secret, and a key must not be in an image or on "
                "a shared volume: mount one in pods.pod"
            )
    if KEY in files and CERTIFICATE not in files:
        raise InvalidSetting(f"pods.rendezvous.{KEY} has no effect without {CERTIFICATE}: set both")


def _is_secret(file: str, volumes: Sequence[Mapping[str, Any]], mounts: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the innermost mount around the file is that of a secret."""
    sources = {volume["name"]: volume for volume in volumes}
    around = [mount for mount in mounts if PurePosixPath(file).is_relative_to(mount["mountPath"])]
    innermost = max(around, key=lambda each: len(each["mountPath"]), default={"name": ""})
    return any(kind in sources.get(innermost["name"], {}) for kind in SECRET_VOLUMES)
