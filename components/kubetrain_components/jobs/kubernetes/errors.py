"""Errors of a Kubernetes API server, with remedies."""

import json
import re
from typing import Any, ClassVar

from kubetrain_trainer.errors import KubetrainError

TRANSIENT = (408, 429, 500, 502, 503, 504)
DENIED_BY_RBAC = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) (?:resource|path) "(?P<resource>[^"]+)"')
UNKNOWN_FIELD = re.compile(r'unknown field \\?"([^"\\]+)')
NAMESPACE = re.compile(r'in the namespace "([^"]+)"')


class KubernetesError(KubetrainError):
    """A request to the API server failed."""


class Unreachable(KubernetesError):
    """All attempts at a request failed until the retry timeout."""

    is_curable: ClassVar[bool] = True


class Misconfigured(KubernetesError):
    """The server, its certificate or our credentials seem to be configured wrongly, unless they have worked before."""


class Unauthorized(KubernetesError):
    """The API server rejects our credentials."""


class Forbidden(KubernetesError):
    """Our account lacks permission. Rejections by admission (Pod Security, quota, webhooks) are not this error."""


class BadRequest(KubernetesError):
    """The request is invalid, or comes too early."""


class UnknownKind(KubernetesError):
    """The cluster does not serve this kind of object."""


class NotFound(KubernetesError):
    """The object does not exist."""


class Conflict(KubernetesError):
    """The name is taken, or belongs to an unexpected object."""


class Gone(KubernetesError):
    """The server has forgotten the resource version to continue from: list again."""


class StreamCut(KubernetesError):
    """A stream broke off before its end."""


class StreamSilent(StreamCut):
    """Nothing arrived on the stream within its read timeout."""


class Transient(Exception):
    """An error that a retry may resolve."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def check_response(request: str, status: int, content: bytes, retry_after: str) -> None:
    """Raise if the response is an error.

    Raises:
        Transient: if a retry may succeed.
        KubernetesError: if no retry can succeed.
    """
    if status < 300:
        return
    message = _message(content) or f"status {status}"
    if status in TRANSIENT:
        raise Transient(message, float(retry_after) if retry_after.isdigit() else 0.0)
    if status < 400 or (status in (403, 404) and not _status_of(content) and b"page not found" not in content):
        raise Misconfigured(
            f"something other than a Kubernetes API server answers {request} (status {status}): check KUBECONFIG, and "
            "log in if a login page is before the cluster"
        )
    if status == 404 and not _status_of(content):
        raise UnknownKind(
            f"the API server does not know the resource of {request}: install what provides it, or set another "
            "pods.launcher"
        )
    raise _refusal(request, status, message)


def _refusal(request: str, status: int, message: str) -> KubernetesError:
    if status == 401 or 'User "system:anonymous"' in message:
        return Unauthorized(f"the API server rejects our credentials ({message}): log in to the cluster again")
    if status == 403 and (denied := DENIED_BY_RBAC.search(message)):
        namespace = NAMESPACE.search(message)
        where = f"in the namespace {namespace[1]}" if namespace else "in the whole cluster"
        return Forbidden(
            f"{denied['user']} may not {denied['verb']} {denied['resource']} {where}: give it the Role in deploy/, or "
            "ask your cluster administrator to"
        )
    if unknown := UNKNOWN_FIELD.findall(message):
        return BadRequest(
            f"the cluster does not know the field {', '.join(unknown)} of {request}: correct its name in pods.pod"
        )
    if status == 422 and "metadata.uid: " in message:  # the patch names the uid that it is meant for
        return Conflict(f"{request} was meant for another object of the same name: {message}")
    if status == 409 and request.startswith("POST") and "already exists" not in message:
        raise Transient(message)  # another request changed a quota at the same time (kubernetes#67761)
    kinds = {400: BadRequest, 404: NotFound, 409: Conflict, 410: Gone}
    return kinds.get(status, KubernetesError)(f"the API server rejects {request}: {message}")


def _message(content: bytes) -> str:
    message = _status_of(content).get("message") or content[:500].decode(errors="replace")
    return str(message).strip()


def _status_of(content: bytes) -> dict[str, Any]:
    """Parse the Status object in which Kubernetes reports errors; empty if the content is something else."""
    try:
        status = json.loads(content)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}
