"""`kubetrain diagnose`: print the causes of a failure, with evidence and remedies."""

import json
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubetrain_components import WORKSPACE
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_pipelines.cli.find import FoundRun, find
from kubetrain_pipelines.diagnose.bundle import write_bundle
from kubetrain_pipelines.diagnose.case import Case, Outcome
from kubetrain_pipelines.diagnose.causes import Cause
from kubetrain_pipelines.diagnose.cluster_case import ClusterReader
from kubetrain_pipelines.diagnose.diagnosis import Diagnosis, diagnose
from kubetrain_pipelines.diagnose.kubeflow_case import read_kubeflow_run
from kubetrain_pipelines.diagnose.local_case import STDIN, read_path, read_stdin
from kubetrain_pipelines.jobs.local_jobs import RECORD
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_trainer.errors import InvalidSetting

WIDTH = 80
MAX_QUOTE = 400
NO_FAILURE = {
    Outcome.SUCCEEDED: "nothing is wrong",
    Outcome.RUNNING: "nothing is wrong so far",
    Outcome.STOPPED: "nothing is wrong: it was stopped by Ctrl-C or SIGTERM",
}


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(ConnectionOptions):
    targets: Sequence[str] = ()
    bundle: Path | None = None
    as_json: bool = False


def diagnose_and_show(options: DiagnoseOptions) -> int:
    """Print the causes and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="kubetrain-diagnose-") as folder:
        found = diagnose(_read(options, Path(folder)))
        if options.bundle:
            write_bundle(found, options.bundle)
    print(json.dumps(_report(found), indent=2) if options.as_json else "\n".join(lines(found)))
    if options.bundle and not options.as_json:
        print(f"\nwrote what was read, without secrets, to {options.bundle}")
    return found.exit_code


def _read(options: DiagnoseOptions, folder: Path) -> Case:
    case = Case()
    for target in options.targets or [_workspace()]:
        if target == STDIN:
            read_stdin(case, folder)
        else:
            read_found(case, target, find(target, options), folder)
    return case


def read_found(case: Case, name: str, found: Path | FoundRun | KubernetesApi, folder: Path) -> None:
    match found:
        case FoundRun():
            read_kubeflow_run(case, found.api, found.message, folder)
        case KubernetesApi():
            ClusterReader(found, case, folder).read_named(name)
        case path:
            read_path(case, path)


def _workspace() -> str:
    if not Path(WORKSPACE, RECORD).exists():
        raise InvalidSetting(f"there is no {WORKSPACE} here: name a run, a job, a workspace or log files")
    return WORKSPACE


def _report(found: Diagnosis) -> dict[str, object]:
    return {
        "names": found.case.names,
        "outcome": found.case.outcome,
        "causes": [cause.to_dict() for cause in found.causes],
        "not_read": found.case.gaps,
    }


def lines(found: Diagnosis) -> Iterator[str]:
    case = found.case
    logs = f"{len(case.logs)} log{'s' * (len(case.logs) != 1)} read"
    yield from _filled(f"{', '.join(case.names)}: {case.outcome}, {logs}" if case.names else logs)
    for number, cause in enumerate(found.causes, 1):
        yield ""
        yield from _cause(number, cause)
    if not found.causes:
        yield from ("", _nothing(case))
    for gap in case.gaps:
        yield from _filled(f"could not be read: {gap}", before="\n")


def _cause(number: int, cause: Cause) -> Iterator[str]:
    yield from _filled(f"{number}. {cause.rule.title} ({cause.certainty.words})", indent="   ")
    others = f" and {len(cause.others)} more" if cause.others else ""
    yield f"   {cause.place}{others}:"
    quote = cause.quote if len(cause.quote) <= MAX_QUOTE else f"{cause.quote[:MAX_QUOTE]} …"
    yield from _filled(quote, before="     ", indent="     ")
    if cause.rule.explanation:
        yield from _filled(cause.rule.explanation, before="   ", indent="   ")
    yield from _filled(f"Remedy: {cause.rule.remedy}", before="   ", indent="   ")


def _filled(text: str, before: str = "", indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=before, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _nothing(case: Case) -> str:
    if case.outcome in NO_FAILURE:
        return NO_FAILURE[case.outcome]
    return "no rule matches, and no error was found: pass the logs of all pods"
