"""When a schedule runs next, by the server's clock."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.kubeflow.connection import SYSTEM_NAMESPACE
from kubetrain_pipelines.kubeflow.cron import Cron
from kubetrain_pipelines.kubeflow.kfp_api import Message
from kubetrain_trainer.errors import InvalidSetting

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
ZONE_VARIABLE = "CRON_SCHEDULE_TIMEZONE"
DEPLOYMENT = "ml-pipeline-scheduledworkflow"
ZONE_SETTING = f"{ZONE_VARIABLE} of the deployment {DEPLOYMENT}"
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class ServerZone:
    zone: tzinfo
    described: str
    """Its name, and how we know."""


def server_zone() -> ServerZone:
    """By the server's setting, where its deployment may be read."""
    try:
        name = _zone_of_deployment()
        return ServerZone(ZoneInfo(name), f"{name} ({ZONE_SETTING})")
    except (KubernetesError, LookupError, ZoneInfoNotFoundError) as trouble:
        return ServerZone(UTC, f"UTC assumed ({ZONE_SETTING} cannot be read: {trouble})")


def seconds_of(interval: str) -> int:
    """Of 30m, 6h, 1h30m."""
    parts = re.findall(r"(\d+)([smhd])", interval)
    seconds = sum(int(number) * UNITS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != interval or seconds == 0:
        raise InvalidSetting(f"--every '{interval}' is no interval: write 30m, 6h, 1d or 1h30m")
    return seconds


def next_times(schedule: Message, zone: tzinfo, now: datetime) -> Iterator[datetime]:
    """None where others made it in a form that we do not take."""
    trigger = schedule.get("trigger", {})
    cron = trigger.get("cron_schedule", {}).get("cron", "")
    interval = timedelta(seconds=int(trigger.get("periodic_schedule", {}).get("interval_second", 0)))
    if cron:
        yield from _times_of_cron(cron, zone, now)
    elif interval:
        made = datetime.fromisoformat(schedule["created_at"])
        yield from ((made + number * interval).astimezone(zone) for number in count((now - made) // interval + 1))


def trigger_in_words(schedule: Message) -> str:
    trigger = schedule.get("trigger", {})
    if cron := trigger.get("cron_schedule", {}).get("cron"):
        return f"cron '{cron}'"
    return f"every {trigger.get('periodic_schedule', {}).get('interval_second', '?')} s"


def _times_of_cron(text: str, zone: tzinfo, moment: datetime) -> Iterator[datetime]:
    try:
        cron = Cron.parse(text)
    except InvalidSetting:
        return
    while (time := cron.next_after(moment, zone)) is not None:
        yield time
        moment = time


def _zone_of_deployment() -> str:
    from kubetrain_components.jobs.kubernetes.api import KubernetesApi

    api = KubernetesApi.connect(SYSTEM_NAMESPACE, PATIENCE_SECONDS)
    found = api.get(api.path("apps/v1", "deployments", DEPLOYMENT))
    if found is None:
        raise LookupError(f"namespace {SYSTEM_NAMESPACE} has none")
    containers = found["spec"]["template"]["spec"]["containers"]
    values = {each["name"]: each.get("value", "") for container in containers for each in container.get("env") or []}
    return values.get(ZONE_VARIABLE) or "UTC"
