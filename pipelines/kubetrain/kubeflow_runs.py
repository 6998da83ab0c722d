"""Runs in Kubeflow Pipelines."""

import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Self, Unpack

from kubetrain.login import FilePath, Login, as_path, as_source, connect
from kubetrain.status import Stage, Status, run_page, sentence
from kubetrain_pipelines.kubeflow.cancel_run import cancel_run
from kubetrain_pipelines.kubeflow.follow_run import watch_run
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run as ReadRun
from kubetrain_pipelines.kubeflow.run import find_run as found_run
from kubetrain_pipelines.kubeflow.run import read_run, recent_runs, titles_of
from kubetrain_pipelines.kubeflow.run_logs import read_logs
from kubetrain_pipelines.kubeflow.run_results import metrics_of, model_uri_of
from kubetrain_pipelines.kubeflow.run_status import status_of
from kubetrain_pipelines.kubeflow.submit import RunOptions, submit_run
from kubetrain_pipelines.requests.say import print_line
from kubetrain_trainer.errors import KubetrainError


class Run:
    """A run in Kubeflow Pipelines."""

    def __init__(self, api: KfpApi, run_id: str, name: str, titles: Mapping[str, str] | None = None) -> None:
        """
        Args:
            titles: The titles of the stages by task; they are read if they are not given.
        """
        self.id, self.name = run_id, name
        self._api = api
        self._given_titles = titles

    def wait(self, timeout: float | None = None) -> Self:
        """Show the progress of the run until it has succeeded. An interrupt leaves the run going.

        Args:
            timeout: The seconds to wait; None: until the run ends.

        Raises:
            RunFailed: if the run failed or was canceled, with the cause if it is known.
            TimeoutError: if the run has not ended after the timeout.
            KubetrainError: if contact to the server was lost.
        """
        attach = f"kubetrain.find_run('{self.id}')"
        next_steps = f"follow it with `{attach}.wait()`, cancel it with `{attach}.cancel()`"
        seconds = math.inf if timeout is None else timeout
        watch_run(self._api, self.id, self._titles, next_steps, timeout_seconds=seconds)
        return self

    def status(self) -> Status:
        """Return the state of the run and of its stages, and the causes of a failure."""
        status = status_of(self._api, self._read())
        run = status.run
        stages = tuple(Stage(stage.title, stage.state.value, stage.seconds) for stage in run.stages)
        return Status(run.state.value, run.seconds, stages, tuple(status.causes))

    def logs(self, stage: str = "") -> str:
        """Return what the steps of the run wrote so far.

        Args:
            stage: The name of one stage, such as launch-training; empty: all stages, each with a heading.
        """
        return "\n".join(read_logs(self._api, self.id, stage))

    def cancel(self) -> None:
        """Cancel the run and verify that its jobs are gone."""
        cancel_run(self._api, self.id, print_line)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test split; empty if the model has not been evaluated."""
        return metrics_of(self._api, self._read())

    @property
    def model_uri(self) -> str:
        """The URI of the published version; empty if no model has been published."""
        return model_uri_of(self._api, self._read())

    def _read(self) -> ReadRun:
        return read_run(self._api, self.id, self._titles)

    @cached_property
    def _titles(self) -> Mapping[str, str] | None:
        if self._given_titles is not None:
            return self._given_titles
        return titles_of(self._api, found_run(self._api, self.id))

    def __repr__(self) -> str:
        return f"<kubetrain run {self.id} ({self.name})>"

    def _repr_html_(self) -> str:
        try:
            status = self.status()
        except KubetrainError as error:  # a notebook would show a traceback for each output
            return sentence(f"{self!r}: {error}")
        metrics, model_uri = {}, ""
        with suppress(KubetrainError):  # the stages are worth showing without them
            metrics, model_uri = self.metrics, self.model_uri
        page = self._api.connection.page_of(self.id)
        return run_page(f"Run {self.id} ({self.name})", status, metrics, model_uri, link=page)


def submit(
    source: FilePath,
    *,
    code: FilePath | None = None,
    experiment: str = "",
    name: str = "",
    service_account: str = "",
    endpoint: str = "",
    namespace: str = "",
    token_file: FilePath | None = None,
    cookie_file: FilePath | None = None,
    ca_file: FilePath | None = None,
    **settings: Any,
) -> Run:
    """Start a run of a pipeline, as `kubetrain submit` does.

    Args:
        source: A file that describes the run, or a pipeline: a compiled file, or the name of one in ./compiled.
        code: A folder of your own code.
        experiment: The experiment, created if missing; empty: Default.
        name: The name of the run; empty: the pipeline's name and the time.
        service_account: The service account of the run's steps; empty: the server's.
        endpoint: The URL of Kubeflow Pipelines; empty: $KUBETRAIN_KFP_ENDPOINT, or that of `kubetrain config`.
        namespace: Your profile, if Kubeflow Pipelines is multi-user; empty: that of `kubetrain config`.
        token_file: A file with a token; None: $KF_PIPELINES_TOKEN, or that of `kubetrain config`.
        cookie_file: A file with a session cookie; None: $KF_PIPELINES_COOKIE.
        ca_file: The CA certificate of the server.
        settings: Settings by group, such as train={"epochs": 1}; they override the file.

    Raises:
        InvalidSetting: if an argument or setting is invalid.
        KubetrainError: if the run cannot be started.
    """
    api = connect(
        endpoint=endpoint, namespace=namespace, token_file=token_file, cookie_file=cookie_file, ca_file=ca_file
    )
    options = RunOptions(
        source=as_source(source),
        settings=settings,
        code=as_path(code),
        experiment=experiment,
        name=name,
        service_account=service_account,
    )
    submitted = submit_run(api, options, print_line)
    return Run(api, submitted.id, submitted.name, submitted.titles)


def find_run(wanted: str, **login: Unpack[Login]) -> Run:
    """Return an existing run.

    Args:
        wanted: The ID of the run, or a name that means the newest run with this name.
        login: The connection, as for `submit`.

    Raises:
        KubetrainError: if the run does not exist.
    """
    api = connect(**login)
    found = found_run(api, wanted)
    return Run(api, found["run_id"], found["display_name"])


def runs(**login: Unpack[Login]) -> list[Run]:
    """Return recent runs, the newest first.

    Args:
        login: The connection, as for `submit`.
    """
    api = connect(**login)
    return [Run(api, item.id, item.name) for item in recent_runs(api)]
