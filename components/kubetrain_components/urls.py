"""Checks of the URLs and places that users give."""

import contextlib
import ipaddress
import re
from urllib.parse import urlsplit

from kubetrain_trainer.errors import InvalidSetting

HOST = re.compile(r"[\w.-]+", re.ASCII)
PLACEHOLDER = re.compile(r"(?i)(.*/)?(<|your[-_])")


def is_placeholder(name: str) -> bool:
    """Return True for the name of an image or bucket that stands in a guide for the reader's own."""
    return PLACEHOLDER.match(name) is not None


def has_host_and_port(url: str) -> bool:
    """Return True if the URL has a host, and a valid port or none."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port != 0)
    except ValueError:
        return False


def proxy_url(given: str, source: str) -> str:
    """Return the URL of a proxy, which may be given without http://; empty if none is.

    Args:
        source: Where it was given, for the error.

    Raises:
        InvalidSetting: if it is of an unsupported kind, or no URL.
    """
    url = given if "://" in given or not given else f"http://{given}"
    scheme = url.partition("://")[0].lower()
    if url and scheme not in ("http", "https"):
        raise InvalidSetting(f"proxies of the kind {scheme}:// are not supported: set an http:// or https:// proxy")
    if url and not (url.isascii() and has_host_and_port(url) and _has_valid_host(url)):
        # not quoted, because it may contain a password
        raise InvalidSetting(
            f"the proxy ({source}) is not a valid URL: set http://[user:password@]host:port, with special characters "
            "of the password as %XX"
        )
    return url


def _has_valid_host(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return "[" not in url and HOST.fullmatch(name) is not None
