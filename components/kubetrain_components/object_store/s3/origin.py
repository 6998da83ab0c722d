"""The server that requests go to, and the way there: proxy and CA certificates, chosen as botocore chooses them."""

import base64
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from kubetrain_components.no_proxy import DEFAULT_PORTS
from kubetrain_trainer.errors import InvalidSetting

HAS_SCHEME = re.compile(r"\w+://")


@dataclass(frozen=True)
class Proxy:
    host: str
    port: int
    authorization: str
    """Value of the header for the user and password in the proxy's URL; empty without them."""
    tls: ssl.SSLContext | None = None
    """How to encrypt the connection to the proxy itself."""

    @classmethod
    def of_url(cls, url: str, ca_bundle: str | None) -> Self:
        """
        Raises:
            InvalidSetting: if the URL does not name an HTTP or HTTPS proxy.
        """
        parts = urlsplit(url if HAS_SCHEME.match(url) else f"http://{url.removeprefix('//')}")
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise InvalidSetting(
                f"the proxy '{url.rpartition('@')[2]}' cannot be used for S3: set HTTP_PROXY or HTTPS_PROXY to "
                "http://HOST:PORT or https://HOST:PORT (not SOCKS), or name the S3 server in NO_PROXY"
            )
        tls = trusted(ca_bundle) if parts.scheme == "https" else None
        return cls(parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme], _authorization(parts.netloc), tls)


@dataclass(frozen=True)
class Origin:
    scheme: str
    host: str
    port: int
    proxy: Proxy | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of_url(cls, url: str, ca_bundle: str | None = None) -> Self:
        """Return the origin of a URL with the proxy that the environment sets for it.

        Raises:
            InvalidSetting: if the proxy or the CA certificates cannot be used.
        """
        parts = urlsplit(url)
        proxy = get_environ_proxies(f"{parts.scheme}://{parts.netloc}").get(parts.scheme)
        return cls(
            parts.scheme,
            parts.hostname or "",
            parts.port or DEFAULT_PORTS[parts.scheme],
            Proxy.of_url(proxy, ca_bundle) if proxy else None,
            trusted(ca_bundle) if parts.scheme == "https" else None,
        )

    @property
    def authority(self) -> str:
        return self.host_in_url if self.port == DEFAULT_PORTS[self.scheme] else f"{self.host_in_url}:{self.port}"

    @property
    def host_in_url(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def trusted(ca_bundle: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts these CA certificates, a file or a folder; by default, those of botocore.

    Raises:
        InvalidSetting: if they cannot be read.
    """
    path = Path(ca_bundle or get_cert_path(True))
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:  # an SSLError is one
        reason = "no PEM certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise InvalidSetting(
            f"the CA certificates in '{path}' cannot be used ({reason}): set AWS_CA_BUNDLE to a file with certificates "
            "in PEM format"
        ) from error


def _authorization(netloc: str) -> str:
    account, at, _ = netloc.rpartition("@")
    return f"Basic {base64.b64encode(unquote(account).encode()).decode()}" if at else ""
