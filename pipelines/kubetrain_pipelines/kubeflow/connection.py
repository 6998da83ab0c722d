"""Where Kubeflow Pipelines is, and who we are to it: by port-forward, token, projected token or session cookie.

Secrets come from files and variables alone. They are read for each request, as the kubelet renews its tokens, and
taken out of whatever a server says.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kubetrain_trainer.errors import InvalidSetting

ENDPOINT_VARIABLES = ("KUBETRAIN_KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT")
TOKEN_VARIABLE = "KF_PIPELINES_TOKEN"  # noqa: S105 - its name
TOKEN_PATH_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"  # noqa: S105
USUAL_TOKEN_PATH = Path("/var/run/secrets/kubeflow/pipelines/token")
"""Where a pod has its token for Kubeflow Pipelines, if it has one."""
COOKIE_VARIABLE = "KF_PIPELINES_COOKIE"
COOKIE = re.compile(r"[^\s=;]+=[^\s;]+(; *[^\s=;]+=[^\s;]+)*")
SYSTEM_NAMESPACE = "kubeflow"


@dataclass(frozen=True, kw_only=True)
class Connection:
    endpoint: str = ""
    namespace: str = ""
    """The profile, where Kubeflow Pipelines has several users; where it has one, it asks for none."""
    token_file: Path | None = None
    cookie_file: Path | None = None
    ca_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "endpoint", _checked(named_endpoint(self.endpoint, self.environment)))
        if self.ca_file and not self.ca_file.is_file():
            raise InvalidSetting(
                f"--ca-file {self.ca_file} is no file: name the certificate that the server's is signed by"
            )

    @property
    def pods_namespace(self) -> str:
        """Where the pods of runs are: in the profile, else beside Kubeflow Pipelines itself."""
        return self.namespace or SYSTEM_NAMESPACE

    def headers(self) -> dict[str, str]:
        """
        Raises:
            InvalidSetting: for a secret that cannot be read, or not be sent.
        """
        token, cookie = self._token(), self._cookie()
        proofs = {"Authorization": token and f"Bearer {token}", "Cookie": cookie}
        return {name: value for name, value in proofs.items() if value}

    def without_secrets(self, text: str) -> str:
        """Some gateways repeat what they were sent."""
        values = [part.partition("=")[2] for part in self._cookie().split(";")]
        for secret in filter(None, (self._token(), *values)):
            text = text.replace(secret, "***")
        return text

    def _token(self) -> str:
        if self.token_file:
            return _one_word("--token-file", _read("--token-file", self.token_file))
        if token := self.environment.get(TOKEN_VARIABLE):
            return _one_word(TOKEN_VARIABLE, token)
        if path := self.environment.get(TOKEN_PATH_VARIABLE):
            return _one_word(TOKEN_PATH_VARIABLE, _read(TOKEN_PATH_VARIABLE, Path(path)))
        return _one_word(str(USUAL_TOKEN_PATH), USUAL_TOKEN_PATH.read_text()) if USUAL_TOKEN_PATH.exists() else ""

    def _cookie(self) -> str:
        named = self.environment.get(COOKIE_VARIABLE, "")
        cookie = (_read("--cookie-file", self.cookie_file) if self.cookie_file else named).strip()
        if cookie and not COOKIE.fullmatch(cookie):
            source = "--cookie-file" if self.cookie_file else COOKIE_VARIABLE
            raise InvalidSetting(
                f"{source} holds no cookie: write NAME=VALUE, as authservice_session=… or oauth2_proxy_kubeflow=…"
            )
        return cookie


def named_endpoint(given: str, environment: Mapping[str, str] = os.environ) -> str:
    """Empty where nobody has said it."""
    return given or next(filter(None, map(environment.get, ENDPOINT_VARIABLES)), "")


def _checked(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if not endpoint:
        raise InvalidSetting(
            f"where is Kubeflow Pipelines? Say it by --endpoint or {ENDPOINT_VARIABLES[0]}: http://localhost:8888 "
            "after `kubectl port-forward -n kubeflow svc/ml-pipeline 8888`, or https://HOST/pipeline behind a gateway"
        )
    if parts.username or parts.password:
        raise InvalidSetting(
            f"the endpoint of {parts.hostname} has a password in it: give a token or a cookie by a file or a variable"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidSetting(f"endpoint '{endpoint}' is no address: write http://HOST:PORT or https://HOST/pipeline")
    return endpoint.rstrip("/")


def _read(source: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise InvalidSetting(f"{source} {path} cannot be read ({reason}): name a file with the secret alone") from error


def _one_word(source: str, text: str) -> str:
    """A line break would end the header, and what follows would be another."""
    token = text.strip()
    if not token.isascii() or len(token.split()) > 1:
        raise InvalidSetting(f"{source} holds no token: it is one word, without 'Bearer' before it")
    return token
