"""Requests to the REST API of Kubeflow Pipelines (v2beta1): JSON in and out, in bounded time.

Reading is tried again while the server is away. What changes something is sent once, as nobody knows what became of a
request without an answer: whoever sent it looks. Not kfp's own client: its import takes longer than all of this, and it
waits for ever.
"""

import json
import logging
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError

from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, Transient, Unanswered, Unreachable, check_answer

Message = dict[str, Any]

ROOT = "/apis/v2beta1"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
PATIENCE_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
PAGE_SIZE = 100

log = logging.getLogger(__name__)


class KfpApi:
    def __init__(
        self,
        connection: Connection,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self.connection = connection
        self._patience_seconds = patience_seconds
        timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, answer_seconds), read=answer_seconds)
        # Without retries no redirect is followed either: a secret goes to this server alone.
        self._pool = urllib3.PoolManager(
            timeout=timeout, retries=False, ca_certs=connection.ca_file and str(connection.ca_file)
        )

    def get(self, path: str, **query: Any) -> Message:
        """
        Raises:
            Unreachable: where no answer comes in all our patience.
        """
        return self._parsed(self._patiently(f"{ROOT}{path}", query))

    def get_text(self, path: str) -> str:
        return self._patiently(path, {})

    def all_of(self, kind: str, path: str, **query: Any) -> Iterator[Message]:
        """Every object of a list, page by page."""
        token = ""
        while True:
            page = self.get(path, page_size=PAGE_SIZE, page_token=token, **query)
            yield from page.get(kind, [])
            token = page.get("next_page_token", "")
            if not token:
                return

    def post(self, path: str, body: Message | None = None) -> Message:
        """
        Raises:
            Unanswered: where nobody knows whether it was done.
        """
        return self._parsed(self._once("POST", path, {}, body=json.dumps(body or {}).encode()))

    def delete(self, path: str, **query: Any) -> None:
        self._once("DELETE", path, query)

    def upload(self, path: str, file_name: str, content: bytes, **query: Any) -> Message:
        return self._parsed(self._once("POST", path, query, fields={"uploadfile": (file_name, content)}))

    def _patiently(self, path: str, query: Mapping[str, Any]) -> str:
        deadline = time.monotonic() + self._patience_seconds
        longest = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._exchange("GET", path, query)
            except Transient as trouble:
                if time.monotonic() + longest > deadline:
                    raise Unreachable(
                        f"Kubeflow Pipelines at {self.connection.endpoint} gives no answer ({trouble}): "
                        "check the address, and that its API server (or the port-forward to it) runs"
                    ) from trouble
                log.info("GET %s: %s; tried again", path, trouble)
            time.sleep(random.uniform(longest / 2, longest))
            longest = min(2 * longest, MAX_PAUSE_SECONDS)

    def _once(self, method: str, path: str, query: Mapping[str, Any], **content: Any) -> str:
        try:
            return self._exchange(method, f"{ROOT}{path}", query, **content)
        except Transient as trouble:
            raise Unanswered(
                f"Kubeflow Pipelines at {self.connection.endpoint} gave no answer to {method} {path} ({trouble}): "
                "whether it was done is not known"
            ) from trouble

    def _exchange(self, method: str, path: str, query: Mapping[str, Any], **content: Any) -> str:
        """
        Raises:
            Transient: where the same again may succeed.
        """
        fields = urlencode({name: value for name, value in query.items() if value not in ("", None)})
        url = f"{self.connection.endpoint}{path}" + (f"?{fields}" if fields else "")
        headers = {"Accept": "application/json", "User-Agent": "kubetrain", **self.connection.headers()}
        if "body" in content:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._pool.request(method, url, headers=headers, **content)
        except HTTPError as error:
            raise self._judged(error) from error
        said = answer.data.decode(errors="replace")
        request = f"{method} {path}"
        check_answer(request, self.connection.endpoint, answer.status, self.connection.without_secrets(said))
        return said

    def _judged(self, error: HTTPError) -> Exception:
        reason = self.connection.without_secrets(str(getattr(error, "reason", error)))
        if "certificate" in reason.lower():
            return KfpError(
                f"the certificate of {self.connection.endpoint} is not one that this machine trusts ({reason}): "
                "name the certificate that it is signed by with --ca-file"
            )
        return Transient(reason)

    def _parsed(self, content: str) -> Message:
        try:
            return dict(json.loads(content or "{}"))
        except (ValueError, TypeError) as error:
            raise KfpError(
                f"what answers at {self.connection.endpoint} is not the API of Kubeflow Pipelines: name its address, "
                "as http://localhost:8888 of a port-forward, or https://HOST/pipeline; behind a login, give its cookie"
            ) from error


def named(key: str, value: str) -> str:
    """The filter for objects with this value."""
    return json.dumps({"predicates": [{"key": key, "operation": "EQUALS", "string_value": value}]})
