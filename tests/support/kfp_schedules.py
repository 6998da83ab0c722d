"""Schedules for the fake Kubeflow Pipelines, all of one name."""

from pathlib import Path
from typing import Any

from kubetrain_pipelines.cli.runs import ScheduleOptions, schedule_and_show
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.submit import RunOptions
from support.kfp_server import KfpServer

NIGHTLY = "0 0 2 * * *"
COMPILED = Path(__file__).parents[2] / "compiled"
RUN = RunOptions(pipeline=str(COMPILED / "sync_only.yaml"), pairs=("dataset_uri=s3://b/data",), name="nightly")


def wanted(cron: str) -> dict[str, Any]:
    return {"display_name": "nightly", "trigger": {"cron_schedule": {"cron": cron}}, "max_concurrency": "1"}


def manage(api: KfpApi, **options: Any) -> None:
    schedule_and_show(api, RunOptions(pipeline=""), ScheduleOptions(**options))


def enabled(server: KfpServer) -> list[str]:
    return [each["trigger"]["cron_schedule"]["cron"] for each in server.schedules if each["mode"] == "ENABLE"]
