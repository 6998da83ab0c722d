"""Credentials for Azure Blob Storage: an account's key, a shared access signature, or an identity."""

import base64
import hmac
import os
import threading
import time
from email.utils import formatdate
from urllib.parse import parse_qsl, urlsplit

from kubetrain_components.object_store.http_client import Headers, Sign
from kubetrain_components.object_store.store import Access, AccessRefused
from kubetrain_trainer.errors import InvalidSetting

VERSION = {"x-ms-version": "2021-12-02"}
SCOPE = "https://storage.azure.com/.default"
SECONDS_LEFT = 300
"""A token with less is renewed."""
SIGNED_HEADERS = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


def sas_token(access: Access) -> str:
    """Return the parameters of a shared access signature, which a URL ends with; empty if there is none."""
    is_used = access != Access.ANONYMOUS and not os.environ.get("AZURE_STORAGE_KEY")
    return os.environ.get("AZURE_STORAGE_SAS_TOKEN", "").strip().removeprefix("?") if is_used else ""


def signer(account: str, uri: str, access: Access) -> Sign:
    if access == Access.ANONYMOUS or sas_token(access):
        return lambda _method, _url, headers: {**headers, **VERSION}
    if key := os.environ.get("AZURE_STORAGE_KEY"):
        try:
            decoded = base64.b64decode(key, validate=True)
        except ValueError:
            raise InvalidSetting("AZURE_STORAGE_KEY is not the key of an account: copy it again") from None
        return lambda method, url, headers: with_signature(account, decoded, method, url, {**headers, **VERSION})
    return IdentityToken(uri).add


def with_signature(account: str, key: bytes, method: str, url: str, headers: Headers) -> Headers:
    """Return the headers with the signature of a Shared Key."""
    parts = urlsplit(url)
    sent = {**headers, "x-ms-date": formatdate(usegmt=True)}
    lines = [method, *("" if (value := sent.get(name, "")) == "0" else value for name in SIGNED_HEADERS)]
    lines += [f"{name}:{value}" for name, value in sorted(sent.items()) if name.startswith("x-ms-")]
    lines.append(f"/{account}{parts.path}")
    lines += [f"{name}:{value}" for name, value in sorted(parse_qsl(parts.query, keep_blank_values=True))]
    signature = base64.b64encode(hmac.digest(key, "\n".join(lines).encode(), "sha256")).decode()
    return {**sent, "authorization": f"SharedKey {account}:{signature}"}


class IdentityToken:
    """The token of a managed or workload identity, or of who is logged in."""

    def __init__(self, uri: str) -> None:
        from azure.identity import DefaultAzureCredential

        self._uri, self._credential = uri, DefaultAzureCredential()
        self._lock, self._token, self._expires = threading.Lock(), "", 0.0

    def add(self, _method: str, _url: str, headers: Headers) -> Headers:
        with self._lock:
            if self._expires - time.time() < SECONDS_LEFT:
                self._renew()
        return {**headers, **VERSION, "authorization": f"Bearer {self._token}"}

    def _renew(self) -> None:
        from azure.core.exceptions import ClientAuthenticationError

        try:
            self._token, self._expires = self._credential.get_token(SCOPE)[:2]
        except ClientAuthenticationError as error:
            reason = str(error).partition("\n")[0]
            raise AccessRefused(
                f"no credentials for {self._uri} ({reason}): set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, log in "
                "with `az login`, or let the pods use a managed or workload identity; use anonymous access for a "
                "public container"
            ) from error
