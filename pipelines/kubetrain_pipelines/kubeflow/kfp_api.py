"""Requests to the REST API of Kubeflow Pipelines (v2beta1), each with a timeout.

Reads are retried while the server is unreachable. A request that changes something is sent once: if its answer is lost,
the caller checks whether it was carried out. kfp's own client is not used: importing it takes longer than a whole
command, and it waits without a timeout.
"""

import json
import logging
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound, Transient, Unanswered, Unreachable, check_answer

Message = dict[str, Any]


class Answer(Message):
    """An object in an answer. Every field that is read by its name has to be there."""

    def __missing__(self, name: str) -> Any:
        raise KfpError(f"an answer of Kubeflow Pipelines lacks {name}: check the endpoint, and the server's version")


ROOT = "/apis/v2beta1"
CONNECT_TIMEOUT_SECONDS = 10.0
TIMEOUT_SECONDS = 30.0
RETRY_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
PAGE_SIZE = 100

log = logging.getLogger(__name__)


class KfpApi:
    def __init__(
        self, connection: Connection, *, retry_seconds: float = RETRY_SECONDS, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """
        Args:
            retry_seconds: The time for which a read is retried.
            timeout_seconds: The timeout of one request.
        """
        self.connection = connection
        self._retry_seconds = retry_seconds
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_SECONDS, timeout_seconds), read=timeout_seconds)
        # retries=False also disables redirects: credentials go to this server only.
        self._pool = _pool(connection, timeout=timeout, retries=False)

    def get(self, path: str, **query: Any) -> Message:
        """
        Raises:
            Unreachable: if the server does not answer despite retries.
        """
        return self._parse(self._read(f"{ROOT}{path}", query))

    def get_by_id(self, path: str, wanted: str, missing: str) -> Message:
        """
        Raises:
            NotFound: with the sentence `missing`, if the server has no object with this ID.
        """
        try:
            return self.get(f"{path}/{wanted}")
        except NotFound as error:
            if f"{wanted} not found" not in str(error):  # the endpoint may be wrong
                raise
            raise NotFound(missing) from error

    def peek(self, path: str, **query: Any) -> tuple[int, str]:
        """Return the status and text of an answer, also if it is an error, after one attempt.

        Raises:
            Unreachable: if the server does not answer.
        """
        try:
            return self._exchange("GET", path, query)[:2]
        except Transient as error:
            raise Unreachable(f"{self.connection.endpoint} does not answer ({error})") from error

    def list_all(self, kind: str, path: str, **query: Any) -> Iterator[Message]:
        """Yield every object of a list, page by page."""
        token = ""
        while True:
            page = self.get(path, page_size=PAGE_SIZE, page_token=token, **query)
            yield from page.get(kind, [])
            token = page.get("next_page_token", "")
            if not token:
                return

    def find(self, kind: str, path: str, key: str, value: str, **query: Any) -> Message | None:
        """Return the first object of a list whose field `key` has this value."""
        return next(self.list_all(kind, path, filter=equals(key, value), **query), None)

    def post(self, path: str, body: Message | None = None) -> Message:
        """
        Raises:
            Unanswered: if the answer is lost.
        """
        return self._parse(self._change("POST", path, {}, body=json.dumps(body or {}).encode()))

    def delete(self, path: str, **query: Any) -> None:
        self._change("DELETE", path, query)

    def upload(self, path: str, file_name: str, content: bytes, **query: Any) -> Message:
        return self._parse(self._change("POST", path, query, fields={"uploadfile": (file_name, content)}))

    def _read(self, path: str, query: Mapping[str, Any]) -> str:
        deadline = time.monotonic() + self._retry_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._send("GET", path, query)
            except Transient as error:
                if time.monotonic() + pause > deadline:
                    raise Unreachable(
                        f"Kubeflow Pipelines at {self.connection.endpoint} does not answer ({error}): check the "
                        "endpoint, and that its API server (or your port-forward to it) is running"
                    ) from error
                log.info("GET %s: %s; retrying", path, error)
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _change(self, method: str, path: str, query: Mapping[str, Any], **content: Any) -> str:
        try:
            return self._send(method, f"{ROOT}{path}", query, **content)
        except Transient as error:
            raise Unanswered(
                f"Kubeflow Pipelines at {self.connection.endpoint} did not answer {method} {path} ({error}), which may "
                "or may not have been carried out"
            ) from error

    def _send(self, method: str, path: str, query: Mapping[str, Any], **content: Any) -> str:
        """
        Raises:
            Transient: if a retry may succeed.
        """
        status, text, location = self._exchange(method, path, query, **content)
        safe = self.connection.without_secrets(text)
        check_answer(f"{method} {path}", self.connection.endpoint, status, safe, location)
        return text

    def _exchange(self, method: str, path: str, query: Mapping[str, Any], **content: Any) -> tuple[int, str, str]:
        fields = urlencode({name: value for name, value in query.items() if value not in ("", None)})
        url = f"{self.connection.endpoint}{path}" + (f"?{fields}" if fields else "")
        headers = {"Accept": "application/json", "User-Agent": "kubetrain", **self.connection.headers()}
        if "body" in content:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._pool.request(method, url, headers=headers, **content)
        except HTTPError as error:
            raise self._connection_error(error) from error
        return answer.status, answer.data.decode(errors="replace"), answer.headers.get("Location", "")

    def _connection_error(self, error: HTTPError) -> Exception:
        reason = self.connection.without_secrets(str(getattr(error, "reason", error)))
        if "certificate" in reason.lower():
            return KfpError(
                f"the certificate of {self.connection.endpoint} is not trusted ({reason}): pass the CA certificate "
                "that signed it with --ca-file"
            )
        return Transient(reason)

    def _parse(self, content: str) -> Message:
        try:
            found = json.loads(content or "{}", object_hook=Answer)
            return Answer({name: value for name, value in found.items() if value is not None})
        except (ValueError, TypeError, AttributeError) as error:
            raise KfpError(
                f"the server at {self.connection.endpoint} is not the API of Kubeflow Pipelines: use "
                "http://localhost:8888 with a port-forward, or https://HOST/pipeline with a cookie behind a login"
            ) from error


def _pool(connection: Connection, **settings: Any) -> urllib3.PoolManager:
    """Return the connections to the endpoint, directly or through the proxy that the environment names."""
    settings["ca_certs"] = connection.ca_file and str(connection.ca_file)
    if not (proxy := connection.proxy):
        return urllib3.PoolManager(**settings)
    login = unquote(urlsplit(proxy).netloc.rpartition("@")[0])
    headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)


def equals(key: str, value: str) -> str:
    """Return the filter for objects whose field has this value."""
    return json.dumps({"predicates": [{"key": key, "operation": "EQUALS", "string_value": value}]})
