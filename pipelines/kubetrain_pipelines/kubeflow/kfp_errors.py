"""Errors of Kubeflow Pipelines and the gateways in front of it, each with its remedy."""

import json
from typing import ClassVar
from urllib.parse import urljoin, urlsplit

from kubetrain_trainer.errors import KubetrainError

TOKEN = "kubectl create token ACCOUNT --namespace NAMESPACE --audience pipelines.kubeflow.org"  # noqa: S105 - prints it
LOG_IN = (
    f"pass a token, such as that of `{TOKEN}`, with --token-file or KF_PIPELINES_TOKEN, keep this command with "
    "`kubetrain config set NAME --token-command`, or log in again and pass the new cookie with --cookie-file or "
    "KF_PIPELINES_COOKIE"
)
TRANSIENT = (429, 502, 503, 504)
MAX_MESSAGE = 400


class KfpError(KubetrainError):
    """A request to Kubeflow Pipelines failed."""


class Unreachable(KfpError):
    """The server did not answer despite retries."""

    is_curable: ClassVar[bool] = True


class LostContact(KfpError):
    """A run could not be followed to its end. It continues."""

    exit_code: ClassVar[int] = 3


class Unanswered(KfpError):
    """A request that changes something got no answer. It may or may not have been carried out."""


class Unauthorized(KfpError):
    """Authentication failed."""


class Forbidden(KfpError):
    """The account lacks permission."""


class NotFound(KfpError):
    """The object does not exist."""


class Conflict(KfpError):
    """The name is taken, or the object is in the wrong state."""


class Transient(Exception):
    """A retry of the request may succeed."""


def check_answer(request: str, endpoint: str, status: int, content: str, location: str) -> None:
    """
    Args:
        location: Where a redirect leads to.

    Raises:
        Transient: if a retry of the request may succeed.
        KfpError: if the request was refused.
    """
    if status < 300:
        return
    if status < 400:
        raise _redirected(endpoint, status, location)
    message = message_in(content)[:MAX_MESSAGE] or "no message"
    if status in TRANSIENT or (status == 500 and request.startswith("GET ")):
        raise Transient(f"status {status}: {message}")
    if status == 401:
        raise Unauthorized(f"authentication failed at {endpoint} ({status}: {message}): {LOG_IN}")
    if status == 403:
        raise Forbidden(
            f"{endpoint} denied {request} (403: {message}): pass a namespace of yours with --namespace, ask the owner "
            f"of the namespace for the role kubeflow-edit, or pass a token, such as that of `{TOKEN}`"
        )
    if "multi-user mode" in message:
        raise KfpError(f"{endpoint} is multi-user ({message}): pass your profile with --namespace")
    kinds = {404: NotFound, 409: Conflict}
    raise kinds.get(status, KfpError)(f"Kubeflow Pipelines refused {request} ({status}): {message}")


def _redirected(endpoint: str, status: int, location: str) -> KfpError:
    """Return the error for a redirect, which is not followed: credentials go to the endpoint only."""
    asked, led = urlsplit(endpoint), urlsplit(urljoin(f"{endpoint}/", location))
    target = f"{led.scheme}://{led.netloc}{led.path}"  # the query may contain secrets
    if (asked.hostname, asked.scheme, led.scheme) == (led.hostname, "http", "https"):
        root = target.partition("/apis/")[0]
        return KfpError(f"{endpoint} redirects to {target} ({status}): set the endpoint to {root}")
    return Unauthorized(f"{endpoint} redirects to {target} ({status}), probably to log in: {LOG_IN}")


def message_in(content: str) -> str:
    """Return the innermost of the messages that the server nests, without its stack trace."""
    try:
        answer = json.loads(content)
    except ValueError:
        return " ".join(content.split()) if "<" not in content else "an HTML page"
    if not isinstance(answer, dict):
        return ""
    details = [detail.get("message") for detail in answer.get("details") or [] if isinstance(detail, dict)]
    innermost = next((item for item in details if item and item != "Internal Server Error"), "")
    return str(innermost or answer.get("message") or answer.get("error_message") or answer.get("error") or "")
