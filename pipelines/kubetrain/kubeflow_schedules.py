"""Schedules in Kubeflow Pipelines."""

from typing import Any, Unpack

from kubetrain.login import FilePath, Login, as_path, as_source, connect
from kubetrain_pipelines.kubeflow.find_schedules import is_enabled
from kubetrain_pipelines.kubeflow.find_schedules import schedules as found_schedules
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.schedule import Timing, create_schedule, delete_schedules
from kubetrain_pipelines.kubeflow.submit import RunOptions
from kubetrain_pipelines.kubeflow.trigger import describe_trigger
from kubetrain_pipelines.requests.say import print_line


class Schedule:
    """A schedule in Kubeflow Pipelines."""

    def __init__(self, api: KfpApi, message: Message) -> None:
        self.id: str = message["recurring_run_id"]
        self.name: str = message["display_name"]
        self._api = api
        self._trigger = describe_trigger(message)
        self._is_enabled = is_enabled(message)

    def delete(self) -> None:
        """Delete the schedule. Runs that it started continue."""
        delete_schedules(self._api, self.id, print_line)

    def __repr__(self) -> str:
        paused = "" if self._is_enabled else ", paused"
        return f"<kubetrain schedule {self.id} ({self.name}): {self._trigger}{paused}>"


def schedule(
    source: FilePath,
    *,
    cron: str = "",
    every: str = "",
    name: str = "",
    max_concurrency: int = 1,
    code: FilePath | None = None,
    experiment: str = "",
    service_account: str = "",
    endpoint: str = "",
    namespace: str = "",
    token_file: FilePath | None = None,
    cookie_file: FilePath | None = None,
    ca_file: FilePath | None = None,
    **settings: Any,
) -> Schedule:
    """Create a schedule of a pipeline, or replace the one of this name, as `kubetrain schedule create` does.

    Args:
        source: A file that describes the runs, or a pipeline, as for `submit`.
        cron: Six fields, seconds first, in the server's time zone.
        every: An interval instead of `cron`: 30m, 6h, 1d.
        name: The name of the schedule; empty: the pipeline's.
        max_concurrency: The maximum number of runs at a time.
        code, experiment, service_account: As for `submit`.
        endpoint, namespace, token_file, cookie_file, ca_file: The connection, as for `submit`.
        settings: Settings by group, such as train={"epochs": 1}; they override the file.

    Raises:
        InvalidSetting: if an argument or setting is invalid.
        KubetrainError: if the schedule cannot be created.
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
    timing = Timing(cron=cron, every=every, max_concurrency=max_concurrency)
    return Schedule(api, create_schedule(api, options, timing, print_line))


def schedules(**login: Unpack[Login]) -> list[Schedule]:
    """Return all schedules, the newest first.

    Args:
        login: The connection, as for `submit`.
    """
    api = connect(**login)
    return [Schedule(api, item) for item in found_schedules(api)]
