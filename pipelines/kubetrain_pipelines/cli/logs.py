"""`kubetrain logs`: print what the steps of a run wrote, or the processes of a job."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kubetrain_pipelines.cli.diagnose import read_found
from kubetrain_pipelines.cli.find import FoundRun, find
from kubetrain_pipelines.cli.runs import logs_and_show
from kubetrain_pipelines.diagnose.case import Case
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_trainer.errors import InvalidSetting, KubetrainError


def show_logs(
    name: str, access: ConnectionOptions, stage: str = "", *, follow: bool = False, everything: bool = False
) -> None:
    """
    Raises:
        KubetrainError: if nothing was logged yet.
    """
    found = find(name, access)
    if isinstance(found, FoundRun):
        return logs_and_show(found.api, found.id, stage, follow=follow, everything=everything)
    if follow or stage:
        raise InvalidSetting(f"'{name}' is not a run in Kubeflow Pipelines: leave out --follow and --stage")
    case = Case()
    with tempfile.TemporaryDirectory(prefix="kubetrain-logs-") as folder:
        read_found(case, name, found, Path(folder))
        for line in _lines(case):
            print(line)
    for gap in case.gaps:
        print(f"could not be read: {gap}", file=sys.stderr)
    if not case.logs:
        raise KubetrainError(f"'{name}' has no log yet: see `kubetrain status {name}`")
    return None


def _lines(case: Case) -> Iterator[str]:
    """Yield the lines of each log, below a heading."""
    for name, path in case.logs.items():
        yield f"== {name.removesuffix('.log')}"
        with path.open(errors="replace") as log:
            yield from (line.removesuffix("\n") for line in log)
