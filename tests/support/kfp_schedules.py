"""Schedules for the fake Kubeflow Pipelines, all of one name."""

from pathlib import Path
from typing import Any

from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.schedule import Timing, create_schedule, delete_schedules
from kubetrain_pipelines.kubeflow.submit import RunOptions
from kubetrain_pipelines.requests.say import print_line
from support.kfp_server import KfpServer

NIGHTLY = "0 0 2 * * *"
COMPILED = Path(__file__).parents[2] / "compiled"
RUN = RunOptions(source=str(COMPILED / "sync_only.yaml"), pairs=("data.uri=s3://b/data",), name="nightly")


def wanted(cron: str) -> dict[str, Any]:
    return {"display_name": "nightly", "trigger": {"cron_schedule": {"cron": cron}}, "max_concurrency": "1"}


def create(api: KfpApi, cron: str = NIGHTLY, run: RunOptions = RUN, **timing: Any) -> None:
    create_schedule(api, run, Timing(cron=cron, **timing), print_line)


def delete(api: KfpApi, name: str) -> None:
    delete_schedules(api, name, print_line)


def enabled(server: KfpServer) -> list[str]:
    return [each["trigger"]["cron_schedule"]["cron"] for each in server.schedules if each["mode"] == "ENABLE"]
