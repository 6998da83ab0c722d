"""The proxy for a server, by the environment's variables, read as Go and so kubectl does."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from kubetrain_components import urls
from kubetrain_components.jobs.kubernetes.access.connection import AccessError
from kubetrain_components.no_proxy import bypasses_proxy
from kubetrain_trainer.errors import InvalidSetting

SOURCE = "proxy-url of the kubeconfig, else HTTPS_PROXY or HTTP_PROXY"


def proxy_for(server: str, proxy_url: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the proxy; empty if there is none.

    Args:
        proxy_url: The kubeconfig's, which wins over the environment.

    Raises:
        AccessError: if the proxy is of an unsupported kind, or no URL.
    """
    try:
        return urls.proxy_url(proxy_url or _of_environment(server, environment), SOURCE)
    except InvalidSetting as error:
        raise AccessError(str(error)) from error


def _of_environment(server: str, environment: Mapping[str, str]) -> str:
    if bypasses_proxy(server, _variable("NO_PROXY", environment)):
        return ""
    return _variable(f"{urlsplit(server).scheme.upper()}_PROXY", environment)


def _variable(name: str, environment: Mapping[str, str]) -> str:
    return environment.get(name) or environment.get(name.lower(), "")
