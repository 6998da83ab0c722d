"""The connection to Kubeflow Pipelines, configured as for the commands."""

import os
from pathlib import Path
from typing import TypedDict, Unpack

from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_trainer.errors import InvalidSetting, did_you_mean

FilePath = str | os.PathLike[str]


class Login(TypedDict, total=False):
    endpoint: str
    namespace: str
    token_file: FilePath | None
    cookie_file: FilePath | None
    ca_file: FilePath | None


def connect(**login: Unpack[Login]) -> KfpApi:
    """
    Raises:
        InvalidSetting: for an unknown argument, or if no endpoint is configured, or it is invalid.
    """
    known = Login.__annotations__
    for name in login.keys() - known:
        raise InvalidSetting(f"unknown argument '{name}' of the connection: {did_you_mean(name, known)}")
    options = ConnectionOptions(
        endpoint=login.get("endpoint", ""),
        namespace=login.get("namespace", ""),
        token_file=as_path(login.get("token_file")),
        cookie_file=as_path(login.get("cookie_file")),
        ca_file=as_path(login.get("ca_file")),
    )
    return KfpApi(options.required_connection())


def as_source(given: FilePath) -> str:
    """
    Raises:
        InvalidSetting: if it is neither the path of a file nor the name of a pipeline.
    """
    try:
        return str(os.fspath(given))
    except TypeError:
        raise InvalidSetting(
            f"pass a file or a pipeline's name, not {given!r}: settings follow it, such as train={{'epochs': 1}}"
        ) from None


def as_path(given: FilePath | None) -> Path | None:
    """
    Raises:
        InvalidSetting: if it is not a path.
    """
    try:
        return None if given is None else Path(given)
    except TypeError:
        raise InvalidSetting(f"the path of a file or folder must be text, not {given!r}") from None
