"""The check of URLs that users give."""

from urllib.parse import urlsplit


def has_host_and_port(url: str) -> bool:
    """Return True if the URL has a host, and a valid port or none."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname and parts.port != 0)
    except ValueError:
        return False
