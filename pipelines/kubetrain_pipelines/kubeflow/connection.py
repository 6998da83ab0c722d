"""The endpoint of Kubeflow Pipelines, and the credentials for it: a token or a session cookie.

Credentials come only from files, environment variables and the command of a context. They are read for each request,
because the kubelet rotates its tokens, and masked in all answers of the server.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from kubetrain_components.no_proxy import bypasses_proxy
from kubetrain_components.urls import has_host_and_port, proxy_url
from kubetrain_pipelines.kubeflow.token_command import TokenCommand
from kubetrain_trainer.errors import InvalidSetting

ENDPOINT_VARIABLES = ("KUBETRAIN_KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT")
TOKEN_VARIABLE = "KF_PIPELINES_TOKEN"  # noqa: S105 - its name
TOKEN_PATH_VARIABLE = "KF_PIPELINES_SA_TOKEN_PATH"  # noqa: S105
DEFAULT_TOKEN_PATH = Path("/var/run/secrets/kubeflow/pipelines/token")
"""The path of a pod's projected token for Kubeflow Pipelines."""
COOKIE_VARIABLE = "KF_PIPELINES_COOKIE"
COOKIE = re.compile(r"[!-:<>-~]+=[!-:<-~]*(; *[!-:<>-~]+=[!-:<-~]*)*;?")
"""Pairs of printable ASCII characters."""
UI_PATH = "/pipeline"
"""The path of the UI behind a gateway."""
SYSTEM_NAMESPACE = "kubeflow"
SHORTEST_SECRET = 8


@dataclass(frozen=True, kw_only=True)
class Connection:
    endpoint: str = ""
    namespace: str = ""
    """The profile, if Kubeflow Pipelines is multi-user."""
    token_file: Path | None = None
    token_command: TokenCommand | None = None
    cookie_file: Path | None = None
    ca_file: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "endpoint", _checked(self.endpoint))
        if self.ca_file and not self.ca_file.is_file():
            raise InvalidSetting(f"the CA file {self.ca_file} is not a file: pass that of the server with --ca-file")

    @property
    def pods_namespace(self) -> str:
        """The namespace of the runs' pods: the profile, or that of Kubeflow Pipelines itself."""
        return self.namespace or SYSTEM_NAMESPACE

    def page_of(self, run_id: str) -> str:
        """Return the address of a run's page; empty if the endpoint may be the API server, which has no pages."""
        return f"{self.endpoint}/#/runs/details/{run_id}" if self.endpoint.endswith(UI_PATH) else ""

    @property
    def proxy(self) -> str:
        """The URL of the proxy for the endpoint, as HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY say.

        A port-forward to this machine never goes through one.

        Raises:
            InvalidSetting: if it is of an unsupported kind, or no URL.
        """
        settings = {name.lower(): value for name, value in self.environment.items() if name.lower().endswith("_proxy")}
        settings |= {name: value for name, value in self.environment.items() if name in settings}
        if bypasses_proxy(self.endpoint, settings.get("no_proxy", "")):
            return ""
        found = settings.get(f"{urlsplit(self.endpoint).scheme}_proxy") or settings.get("all_proxy", "")
        return proxy_url(found, "HTTPS_PROXY, HTTP_PROXY or ALL_PROXY")

    def headers(self) -> dict[str, str]:
        """
        Raises:
            InvalidSetting: if a credential cannot be read or is malformed.
        """
        token, cookie = self._token(), self._cookie()
        credentials = {"Authorization": token and f"Bearer {token}", "Cookie": cookie}
        return {name: value for name, value in credentials.items() if value}

    def without_secrets(self, text: str) -> str:
        """Mask the credentials, which some gateways echo. A value as short as a preference is not one."""
        values = [part.partition("=")[2] for part in self._cookie().split(";")]
        tokens = [self._token(), *(self.token_command.tokens if self.token_command else ())]
        for secret in filter(None, (*tokens, *(value for value in values if len(value) >= SHORTEST_SECRET))):
            text = text.replace(secret, "***")
        return text

    def _token(self) -> str:
        if self.token_file:
            return _checked_token("--token-file", _read("--token-file", self.token_file))
        if token := self.environment.get(TOKEN_VARIABLE):
            return _checked_token(TOKEN_VARIABLE, token)
        if path := self.environment.get(TOKEN_PATH_VARIABLE):
            return _checked_token(TOKEN_PATH_VARIABLE, _read(TOKEN_PATH_VARIABLE, Path(path)))
        if self.token_command:
            return _checked_token("the output of the token command", self.token_command.token())
        if DEFAULT_TOKEN_PATH.exists():
            return _checked_token(str(DEFAULT_TOKEN_PATH), DEFAULT_TOKEN_PATH.read_text())
        return ""

    def _cookie(self) -> str:
        variable = self.environment.get(COOKIE_VARIABLE, "")
        cookie = (_read("--cookie-file", self.cookie_file) if self.cookie_file else variable).strip()
        if cookie and not COOKIE.fullmatch(cookie):
            source = "--cookie-file" if self.cookie_file else COOKIE_VARIABLE
            raise InvalidSetting(
                f"{source} is not a cookie: use NAME=VALUE, such as authservice_session=… or oauth2_proxy_kubeflow=…"
            )
        return cookie


def _checked(endpoint: str) -> str:
    parts = _split(endpoint)
    if not endpoint:
        raise InvalidSetting(
            "no Kubeflow Pipelines endpoint: run `kubetrain config set NAME --endpoint URL`, or set --endpoint (in "
            f"Python: endpoint=) or {ENDPOINT_VARIABLES[0]}, with http://localhost:8888 after `kubectl port-forward -n "
            "kubeflow svc/ml-pipeline 8888`, or https://HOST/pipeline behind a gateway"
        )
    if parts.username or parts.password:
        raise InvalidSetting(
            f"the endpoint of {parts.hostname} contains a password: pass a token or a cookie in a file or a variable"
        )
    is_url = parts.scheme in ("http", "https") and has_host_and_port(endpoint)
    if not is_url or parts.query or parts.fragment:
        raise InvalidSetting(f"endpoint '{endpoint}' is not valid: use http://HOST:PORT or https://HOST/pipeline")
    return endpoint.rstrip("/")


def _split(endpoint: str) -> SplitResult:
    try:
        return urlsplit(endpoint)
    except ValueError as error:  # quoting it might show a password
        raise InvalidSetting(f"the endpoint is not a URL ({error}): use http://HOST:PORT or https://HOST") from error


def _read(source: str, path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InvalidSetting(
            f"{source} {path} cannot be read ({reason}): pass a file that contains only the secret"
        ) from error


def _checked_token(source: str, text: str) -> str:
    """Reject spaces and line breaks, because text after a line break would become another header."""
    token = text.strip()
    if not token.isascii() or len(token.split()) > 1:
        raise InvalidSetting(f"{source} is not a token: it must be one word, without a leading 'Bearer'")
    return token
