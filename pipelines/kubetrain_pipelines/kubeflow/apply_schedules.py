"""Make the schedules in a namespace those that files describe, as a repository has them for GitOps."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kubetrain_pipelines.definitions.compiled_file import CompiledFile
from kubetrain_pipelines.kubeflow.cron_zone import describe_cron_zone
from kubetrain_pipelines.kubeflow.find_schedules import applied, is_enabled, schedules
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.replace_schedule import delete_schedule
from kubetrain_pipelines.kubeflow.schedule import Timing, put_schedule
from kubetrain_pipelines.kubeflow.submit import RunOptions
from kubetrain_pipelines.kubeflow.trigger import make_trigger
from kubetrain_pipelines.requests.planned_run import check_before_sending, fill_form
from kubetrain_pipelines.requests.request_file import SCHEDULE, read_source
from kubetrain_pipelines.requests.say import Say
from kubetrain_trainer.errors import InvalidSetting, check_one_of

TIMING = ("cron", "every", "max_concurrency")
TEXTS = ("name", "experiment", "service_account")


@dataclass(frozen=True, kw_only=True)
class Described:
    """The schedule that a file describes."""

    run: RunOptions
    timing: Timing
    digest: str


def apply_schedules(api: KfpApi, files: Sequence[Path], say: Say, *, dry_run: bool) -> None:
    """
    Raises:
        InvalidSetting: if a file is invalid, before anything is changed.
        KfpError: if a schedule could not be replaced; nothing is deleted then.
    """
    wanted = {item.run.name: item for item in map(described, files)}
    if len(wanted) < len(files):
        raise InvalidSetting(f"{len(files)} files describe {len(wanted)} schedules: give each file a schedule.name")
    found = schedules(api)
    for name, item in wanted.items():
        same = [each for each in found if each["display_name"] == name]
        if [(applied(each), is_enabled(each)) for each in same] == [(item.digest, True)]:
            say(f"unchanged: schedule '{name}'")
        elif dry_run:
            say(f"would {'replace' if same else 'create'} schedule '{name}'")
        else:
            put_schedule(api, item.run, item.timing, say, item.digest)
    for each in found:
        if applied(each) and each["display_name"] not in wanted:
            if not dry_run:
                delete_schedule(api, each)
            did = "would delete" if dry_run else "deleted"
            say(f"{did} schedule '{each['display_name']}', which no file describes; runs that it started continue")
    if any(item.timing.cron for item in wanted.values()):
        say(describe_cron_zone())


def described(path: Path) -> Described:
    """
    Raises:
        InvalidSetting: if the file describes no schedule, or one that Kubeflow Pipelines would refuse.
    """
    try:
        return _described(path)
    except InvalidSetting as error:
        raise InvalidSetting(f"{'' if str(path) in str(error) else f'{path}: '}{error}") from error


def _described(path: Path) -> Described:
    read = read_source(str(path))
    given = _checked(path, read.schedule)
    timing = Timing(**{key: given.pop(key) for key in TIMING if key in given})
    make_trigger(timing.cron, timing.every)
    file = CompiledFile.find(read.pipeline)
    run = RunOptions(source=str(path), **{"name": file.name, **given})
    form = fill_form(file.parameters, read)
    check_before_sending(file, form)
    content = [file.version, form, asdict(timing), run.experiment, run.service_account]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return Described(run=run, timing=timing, digest=digest)


def _checked(path: Path, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"{path} describes no schedule: add `{SCHEDULE}:` with cron or every")
    for key, value in given.items():
        check_one_of((*TIMING, *TEXTS), f"{path}: a key of {SCHEDULE}", key)
        if key in TEXTS and not (isinstance(value, str) and value):
            raise InvalidSetting(f"{path}: {SCHEDULE}.{key} must be text, not {value!r}")
    return dict(given)
