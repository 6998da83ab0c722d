"""`kubetrain doctor`: check a cluster before the first run, and print fixes."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kubetrain_components.bring_code.pack import PackedCode
from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.request import Request, without
from kubetrain_pipelines.doctor.examine import Examination, Say
from kubetrain_pipelines.doctor.finding import Finding, Status, cluster_missing
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.requests import bring_code
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.planned_run import planned_run
from kubetrain_trainer.errors import KubetrainError

DATASET, MODEL = "s3://placeholder/dataset", "s3://placeholder/model"
PLACEHOLDERS: Request = {"data": {"uri": DATASET}, "model": {"uri": MODEL}}
"""Values of required settings that the findings do not depend on."""
MISSING_CODE, UNKNOWN_CODE = 1, 3
MARKS = {
    Status.OK: "[green]✓[/]",
    Status.WARNING: "[yellow]![/]",
    Status.MISSING: "[red]✗[/]",
    Status.UNKNOWN: "[yellow]?[/]",
    Status.SKIPPED: "[dim]-[/]",
}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(ConnectionOptions):
    asked: AskedRun = AskedRun()
    service_account: str = ""
    no_pods: bool = False
    as_json: bool = False


def examine_and_show(options: DoctorOptions) -> int:
    """Print the findings and return the exit code."""
    progress = Console(stderr=True)
    with interrupted_by_sigterm(), progress.status("checking the cluster") as status:
        findings = _examine(options, status.update if progress.is_terminal else progress.print)
    if options.as_json:
        report = {"ok": exit_code(findings) == 0, "findings": [finding.to_dict() for finding in findings]}
        print(json.dumps(report, indent=2))
    else:
        show(findings, Console())
    return exit_code(findings)


def _examine(options: DoctorOptions, say: Say) -> list[Finding]:
    connection = options.connection()
    code = bring_code.pack(options.asked, say=say)
    read = bring_code.with_code(options.asked.read(), code)
    brings_data = bool(read.request.get("train", {}).get("entry"))
    parameters = planned_run(read, "doctor", without(PLACEHOLDERS, ["data.uri"] if brings_data else []))
    for warning in bring_code.check_scripts(code, parameters.train_config):
        say(f"warning: {warning}")
    if code and not options.no_pods:
        _bring(code, parameters)
    try:
        api = connected_api(options)
    except KubetrainError as error:
        return [cluster_missing(error)]
    examination = Examination(
        api=api,
        parameters=parameters,
        say=say,
        account=options.service_account,
        connection=connection,
        tests_dataset=parameters.syncs and parameters.dataset_uri != DATASET,
        tests_model=parameters.model_uri != MODEL,
        with_pods=not options.no_pods,
    )
    return list(examination.findings())


def _bring(code: PackedCode, parameters: RunParameters) -> None:
    """Bring the code to the store, as submit does, for a pod that tries it."""
    given = parameters.model_uri != MODEL
    bring_code.upload_to(code, parameters.model_uri if given else "", parameters.s3_endpoint)


def connected_api(options: DoctorOptions) -> KubernetesApi:
    """Connect to the namespace of submit's pods, if it is known which Kubeflow Pipelines submit will use."""
    connection = options.connection()
    return KubernetesApi.connect(connection.pods_namespace if connection else options.namespace)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 0 only if every requested check could be made and found what it needs."""
    found = {finding.status for finding in findings}
    return MISSING_CODE if Status.MISSING in found else UNKNOWN_CODE if Status.UNKNOWN in found else 0


def show(findings: Sequence[Finding], console: Console) -> None:
    """Print one line for each finding, then the remedies, which are not wrapped, and a summary."""
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in ("", "check", "evidence"):
            table.add_column(column, overflow="fold", no_wrap=column != "evidence")
        for item in findings:
            table.add_row(MARKS[item.status], item.check, escape(item.evidence))
        console.print(table, highlight=False)
    else:
        width = max(len(each.check) for each in findings)
        for each in findings:
            print(f"{each.status:8} {each.check:{width}}  {' '.join(each.evidence.split())}")
    for finding in findings:
        if finding.remedy and finding.status in (Status.MISSING, Status.WARNING):
            console.print(f"\n[bold]{escape(finding.check)}[/] ({finding.status}):", highlight=False)
            console.print(finding.remedy, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n{summary(findings)}", markup=False, highlight=False)


def summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.status for finding in findings)
    parts = [f"{counts[Status.MISSING]} missing" if counts[Status.MISSING] else "nothing is missing"]
    if counts[Status.WARNING]:
        parts.append(f"{counts[Status.WARNING]} warning{'s' if counts[Status.WARNING] > 1 else ''}")
    parts += [f"{counts[item]} {item}" for item in (Status.UNKNOWN, Status.SKIPPED) if counts[item]]
    return ", ".join(parts)
