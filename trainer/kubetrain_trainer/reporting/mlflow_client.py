"""A run of MLflow's REST API 2.0, without MLflow's package: it would add hundreds of megabytes to the images."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, Mapping
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

TIMEOUT_SECONDS = 10.0
MAX_ANSWER_BYTES = 16 << 20
MAX_METRICS, MAX_PARAMETERS = 1000, 100
"""MLflow's limits for a request."""
MESSAGE_LENGTH = 200
MARK = "kubetrain.mark"
"""The tag by which a run is found whose creation was not confirmed."""
PASSING = {HTTPStatus.REQUEST_TIMEOUT, 425, HTTPStatus.TOO_MANY_REQUESTS}
SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
Fields = Mapping[str, Any]


class Refused(Exception):
    """The server refuses the request, and would refuse it again."""

    def __init__(self, sentence: str, *, is_of_request: bool = False) -> None:
        super().__init__(sentence)
        self.is_of_request = is_of_request
        """True: because of what it names. False: because of who asks."""


class Unavailable(Exception):
    """The server does not answer, or not now."""


@dataclass(frozen=True)
class LoggedRun:
    """A run, with the names of what the server already has of it."""

    id: str
    experiment: str
    parameters: frozenset[str]
    steps: Mapping[str, int]
    """The last step of each metric."""


class MlflowClient:
    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        """
        Args:
            environment: The variables of MLflow's own client, which hold the credentials.
        """
        self.address = address.rstrip("/")
        self._environment = environment

    def experiment(self, name: str) -> str:
        """Return the ID of the experiment, which is created if it does not exist."""
        try:
            return str(self._post("experiments/create", name=name)["experiment_id"])
        except Refused:  # it exists, perhaps since a moment ago, or this user may not create any
            found = self._ask("GET", "experiments/get-by-name", {"experiment_name": name})
            return str(found["experiment"]["experiment_id"])

    def find_run(self, experiment: str, mark: str) -> str | None:
        query = f"tags.`{MARK}` = '{mark}'"
        found = self._post("runs/search", experiment_ids=[experiment], filter=query, max_results=1)
        return next((str(run["info"]["run_id"]) for run in found.get("runs", [])), None)

    def create_run(self, experiment: str, name: str, mark: str) -> str:
        tags = [{"key": MARK, "value": mark}]
        run = self._post("runs/create", experiment_id=experiment, run_name=name, start_time=now_ms(), tags=tags)
        return str(run["run"]["info"]["run_id"])

    def read_run(self, run_id: str) -> LoggedRun:
        run = self._ask("GET", "runs/get", {"run_id": run_id})["run"]
        data = run.get("data", {})
        return LoggedRun(
            id=run_id,
            experiment=str(run["info"]["experiment_id"]),
            parameters=frozenset(param["key"] for param in data.get("params", [])),
            steps={metric["key"]: int(metric.get("step", 0)) for metric in data.get("metrics", [])},
        )

    def log_parameters(self, run_id: str, parameters: Sequence[Fields]) -> None:
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self._post("runs/log-batch", run_id=run_id, params=parameters[first : first + MAX_PARAMETERS])

    def log_metrics(self, run_id: str, metrics: Sequence[Fields]) -> None:
        for first in range(0, len(metrics), MAX_METRICS):
            self._post("runs/log-batch", run_id=run_id, metrics=metrics[first : first + MAX_METRICS])

    def resume_run(self, run_id: str) -> None:
        self._post("runs/update", run_id=run_id, status="RUNNING")

    def end_run(self, run_id: str, status: str) -> None:
        self._post("runs/update", run_id=run_id, status=status, end_time=now_ms())

    def _post(self, path: str, **values: Any) -> dict[str, Any]:
        return self._ask("POST", path, values)

    def _ask(self, method: str, path: str, values: Fields) -> dict[str, Any]:
        """
        Raises:
            Refused: if the server refuses the request.
            Unavailable: if it may answer later.
        """
        url = f"{self.address}/api/2.0/mlflow/{path}"
        url, body = (f"{url}?{urlencode(values)}", None) if method == "GET" else (url, json.dumps(values).encode())
        headers = {"Content-Type": "application/json", **self._credentials()}
        request = Request(url, data=body, headers=headers, method=method)  # noqa: S310 - checked to be http or https
        try:
            with build_opener(_RefuseRedirects, *self._trusting()).open(request, timeout=TIMEOUT_SECONDS) as response:
                answer = json.loads(response.read(MAX_ANSWER_BYTES))
        except HTTPError as error:
            raise _failure(error) from None
        except URLError as error:
            raise Unavailable(str(error.reason)) from None
        except (OSError, HTTPException) as error:
            raise Unavailable(str(error) or type(error).__name__) from None
        except ValueError:
            raise Unavailable("the answer is not valid JSON") from None
        if not isinstance(answer, dict):
            raise Unavailable("the answer is not MLflow's")
        return answer

    def _trusting(self) -> list[HTTPSHandler]:
        """Return what trusts the CA of MLflow's own variable; by default those of the system, or of SSL_CERT_FILE."""
        path = self._environment.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
        return [HTTPSHandler(context=ssl.create_default_context(cafile=path))] if path else []

    def _credentials(self) -> dict[str, str]:
        """Return the headers by which the server knows the user. They are read for each request: tokens are rotated."""
        given = self._environment
        workspace = {"X-MLFLOW-WORKSPACE": given["MLFLOW_WORKSPACE"]} if given.get("MLFLOW_WORKSPACE") else {}
        if (user := given.get("MLFLOW_TRACKING_USERNAME")) and (password := given.get("MLFLOW_TRACKING_PASSWORD")):
            encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
            return {**workspace, "Authorization": f"Basic {encoded}"}
        token = given.get("MLFLOW_TRACKING_TOKEN", "")
        if not token and given.get("MLFLOW_TRACKING_AUTH", "").startswith("kubernetes"):
            token = _service_account_token()
        return {**workspace, "Authorization": f"Bearer {token.strip()}"} if token else workspace


class _RefuseRedirects(HTTPRedirectHandler):
    """Follow no redirect: it leads to a login page, or would send the credentials to another server."""

    def redirect_request(self, *unused: Any) -> None:
        return None


def _service_account_token() -> str:
    try:
        return SERVICE_ACCOUNT_TOKEN.read_text()
    except OSError:
        raise Refused(
            "MLFLOW_TRACKING_AUTH asks for the pod's token, but it has none: set serviceAccountName of pods.pod"
        ) from None


def _failure(error: HTTPError) -> Refused | Unavailable:
    content = _content(error)
    message = _message(content)
    is_text = error.headers.get_content_type() == "text/plain"  # of what stands before MLflow's own web server
    words = message or (content if is_text else "") or str(error.reason)
    sentence = f"{error.code} {' '.join(words.split())[:MESSAGE_LENGTH]}"
    is_passing = error.code in PASSING or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
    if is_passing or (error.code == HTTPStatus.NOT_FOUND and not message):  # of a gateway whose server is away
        return Unavailable(sentence)
    return Refused(sentence, is_of_request=error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND))


def _content(error: HTTPError) -> str:
    try:
        return error.read(MAX_ANSWER_BYTES).decode(errors="replace")
    except (OSError, HTTPException):
        return ""


def _message(content: str) -> str:
    """Return what MLflow says; empty if something else answers."""
    try:
        return str(json.loads(content)["message"])
    except (ValueError, LookupError, TypeError):
        return ""


def now_ms() -> int:
    return int(time.time() * 1000)


def address_problem(address: str) -> str:
    """Return what is wrong with the address, without repeating what may be a password; empty if nothing is."""
    if any(character in address for character in "@?#"):
        return (
            "must not contain credentials, a query or the # of a page: name the server alone, and pass credentials in "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    if any(character.isspace() for character in address):
        return "must not contain spaces"
    try:
        parts = urlsplit(address)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_server = False
    return "" if is_server else f"must be the address of a server, such as https://mlflow.example.com, not '{address}'"
