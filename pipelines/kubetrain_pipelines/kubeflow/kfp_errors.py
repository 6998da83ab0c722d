"""What Kubeflow Pipelines and the gateways before it refuse, in sentences that say what to do."""

import json
from typing import ClassVar

from kubetrain_trainer.errors import KubetrainError

TRANSIENT = (429, 502, 503, 504)
MAX_MESSAGE = 400


class KfpError(KubetrainError):
    """Kubeflow Pipelines does not do what it is asked."""


class Unreachable(KfpError):
    """No answer came for longer than our patience."""

    is_curable: ClassVar[bool] = True


class Unanswered(KfpError):
    """Nobody knows what became of a request that was to change something."""


class Unauthorized(KfpError):
    """It does not know who we are."""


class Forbidden(KfpError):
    """We may not do that."""


class NotFound(KfpError):
    """There is no such object."""


class Conflict(KfpError):
    """The name is taken, or the object is not in a state for that."""


class Transient(Exception):
    """What may go better in a moment."""


def check_answer(request: str, endpoint: str, status: int, content: str) -> None:
    """Pass what is no refusal.

    Raises:
        Transient: where the same again may succeed.
        KfpError: where it cannot.
    """
    if status < 300:
        return
    message = message_in(content)[:MAX_MESSAGE] or f"status {status}"
    if status in TRANSIENT or (status == 500 and request.startswith("GET ")):
        raise Transient(f"status {status}: {message}")
    if status < 400 or status == 401:  # a gateway sends whom it does not know to its login page
        raise Unauthorized(
            f"{endpoint} does not know who we are ({message}): give a token by --token-file or KF_PIPELINES_TOKEN, or "
            "log in again and give the new cookie by --cookie-file or KF_PIPELINES_COOKIE"
        )
    if status == 403:
        raise Forbidden(
            f"{endpoint} does not let us {request} ({message}): name a --namespace that is ours, or ask its owner for "
            "the role kubeflow-edit in it"
        )
    if "multi-user mode" in message:
        raise KfpError(f"{endpoint} has several users ({message}): say which profile by --namespace")
    kinds = {404: NotFound, 409: Conflict}
    raise kinds.get(status, KfpError)(f"Kubeflow Pipelines refuses {request}: {message}")


def message_in(content: str) -> str:
    """The innermost of the sentences that the server wraps into each other, without its call stack."""
    try:
        answer = json.loads(content)
    except ValueError:
        return " ".join(content.split()) if "<" not in content else "an HTML page"
    if not isinstance(answer, dict):
        return ""
    details = [each.get("message") for each in answer.get("details") or [] if isinstance(each, dict)]
    innermost = next((each for each in details if each and each != "Internal Server Error"), "")
    return str(innermost or answer.get("message") or answer.get("error_message") or answer.get("error") or "")
