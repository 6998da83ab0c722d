"""What a Kubernetes API server refuses, in sentences that say what to do."""

import json
import re
from typing import Any, ClassVar

from kubetrain_trainer.errors import KubetrainError

TRANSIENT = (429, 500, 502, 503, 504)
REFUSED_BY_RULES = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) (?:resource|path) "(?P<resource>[^"]+)"')
NAMESPACE = re.compile(r'in the namespace "([^"]+)"')


class KubernetesError(KubetrainError):
    """The API server does not do what it is asked."""


class Unreachable(KubernetesError):
    """The API server did not answer, or could not, for longer than our patience."""

    is_curable: ClassVar[bool] = True


class Unauthorized(KubernetesError):
    """The API server does not know who we are."""


class Forbidden(KubernetesError):
    """Our account may not do that. What admission (Pod Security, quota, webhooks) refuses is no such."""


class BadRequest(KubernetesError):
    """What is asked for makes no sense, or not yet."""


class UnknownKind(KubernetesError):
    """The cluster has no objects of this kind."""


class NotFound(KubernetesError):
    """There is no such object."""


class Conflict(KubernetesError):
    """The name is taken, or the object is not the one that was meant."""


class Gone(KubernetesError):
    """The server does not remember the version to go on from: list again."""


class StreamCut(KubernetesError):
    """A stream broke off before its end."""


class StreamSilent(StreamCut):
    """Nothing came on a stream for as long as was allowed."""


class Transient(Exception):
    """What may go better in a moment."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def check_answer(request: str, status: int, content: bytes, retry_after: str) -> None:
    """Pass what is no refusal.

    Raises:
        Transient: where the same again may succeed.
        KubernetesError: where it cannot.
    """
    if status < 400:
        return
    message = _message(content) or f"status {status}"
    if status in TRANSIENT:
        raise Transient(message, float(retry_after) if retry_after.isdigit() else 0.0)
    if status == 404 and not _status_of(content):
        raise UnknownKind(
            f"the API server does not know what {request} asks for: install what provides it (the Training Operator?)"
        )
    raise _refusal(request, status, message)


def _refusal(request: str, status: int, message: str) -> KubernetesError:
    if status == 401 or 'User "system:anonymous"' in message:
        return Unauthorized(f"the API server does not accept our credentials ({message}): log in to the cluster again")
    if status == 403 and (rules := REFUSED_BY_RULES.search(message)):
        namespace = NAMESPACE.search(message)
        where = f"in the namespace {namespace[1]}" if namespace else "in the whole cluster"
        return Forbidden(
            f"{rules['user']} may not {rules['verb']} {rules['resource']} {where}: "
            "give it the Role in deploy/, or ask who looks after the cluster to"
        )
    if status == 422 and "metadata.uid: " in message:  # a patch that is meant for this uid alone
        return Conflict(f"{request} was meant for another object of this name: {message}")
    kinds = {400: BadRequest, 404: NotFound, 409: Conflict, 410: Gone}
    return kinds.get(status, KubernetesError)(f"the API server refuses {request}: {message}")


def _message(content: bytes) -> str:
    message = _status_of(content).get("message") or content[:500].decode(errors="replace")
    return str(message).strip()


def _status_of(content: bytes) -> dict[str, Any]:
    """The answer as Kubernetes' own servers give their refusals; empty where it is something else."""
    try:
        status = json.loads(content)
    except ValueError:
        return {}
    return status if isinstance(status, dict) and status.get("kind") == "Status" else {}
