"""`kubetrain doctor`: what a cluster lacks before the first run, and what supplies it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_pipelines.cli.render import planned_run
from kubetrain_pipelines.doctor.examine import Examination, cluster_missing
from kubetrain_pipelines.doctor.finding import Finding, Verdict
from kubetrain_pipelines.kubeflow.connection import Connection, configured_endpoint
from kubetrain_trainer.errors import KubetrainError

UNNAMED = {"dataset_uri": "s3://not-named/dataset", "model_uri": "s3://not-named/model"}
"""Required parameters that the checks of a cluster don't depend on."""
TICKS = {
    Verdict.OK: "[green]✓[/]",
    Verdict.WARNING: "[yellow]![/]",
    Verdict.MISSING: "[red]✗[/]",
    Verdict.UNKNOWN: "[yellow]?[/]",
    Verdict.SKIPPED: "[dim]-[/]",
}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    pipeline: str = "train-pytorch"
    namespace: str = ""
    account: str = ""
    endpoint: str = ""
    token_file: Path | None = None
    cookie_file: Path | None = None
    ca_file: Path | None = None
    pairs: Sequence[str] = ()
    params: Path | None = None
    no_pods: bool = False
    as_json: bool = False

    def connection(self) -> Connection | None:
        """To Kubeflow Pipelines, where somebody has said where it is."""
        if not configured_endpoint(self.endpoint):
            return None
        return Connection(
            endpoint=self.endpoint, token_file=self.token_file, cookie_file=self.cookie_file, ca_file=self.ca_file
        )


def examine_and_show(options: DoctorOptions) -> int:
    """Returns the exit code."""
    connection = options.connection()
    parameters = planned_run(options.pipeline, "doctor", options.pairs, options.params, UNNAMED)
    progress = Console(stderr=True)
    with interrupted_by_sigterm(), progress.status("asking the cluster") as status:
        try:
            api = KubernetesApi.connect(options.namespace)
        except KubetrainError as error:
            findings = [cluster_missing(error)]
        else:
            examination = Examination(
                api=api,
                parameters=parameters,
                account=options.account,
                connection=connection,
                asks_dataset=parameters.dataset_uri != UNNAMED["dataset_uri"],
                asks_model=parameters.model_uri != UNNAMED["model_uri"],
                with_pods=not options.no_pods,
                say=status.update if progress.is_terminal else progress.print,
            )
            findings = list(examination.findings())
    if options.as_json:
        print(json.dumps({"ok": not is_missing(findings), "findings": [asdict(each) for each in findings]}, indent=2))
    else:
        show(findings, Console())
    return int(is_missing(findings))


def is_missing(findings: Sequence[Finding]) -> bool:
    return any(each.verdict is Verdict.MISSING for each in findings)


def show(findings: Sequence[Finding], console: Console) -> None:
    """A line for each; below them the remedies, as long as they are, and the sum."""
    if console.is_terminal:
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in ("", "check", "evidence"):
            table.add_column(column, overflow="fold", no_wrap=column != "evidence")
        for each in findings:
            table.add_row(TICKS[each.verdict], each.check, escape(each.evidence))
        console.print(table, highlight=False)
    else:
        width = max(len(each.check) for each in findings)
        for each in findings:
            print(f"{each.verdict:8} {each.check:{width}}  {' '.join(each.evidence.split())}")
    for each in findings:
        if each.remedy and each.verdict in (Verdict.MISSING, Verdict.WARNING):
            console.print(f"\n[bold]{escape(each.check)}[/] ({each.verdict}):", highlight=False)
            console.print(each.remedy, markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n{summary(findings)}", markup=False, highlight=False)


def summary(findings: Sequence[Finding]) -> str:
    counts = {verdict: sum(each.verdict is verdict for each in findings) for verdict in Verdict}
    said = [
        f"{counts[Verdict.MISSING]} missing" if counts[Verdict.MISSING] else "nothing is missing",
        *(["a warning" if warnings == 1 else f"{warnings} warnings"] if (warnings := counts[Verdict.WARNING]) else []),
        *(f"{counts[each]} {each}" for each in (Verdict.UNKNOWN, Verdict.SKIPPED) if counts[each]),
    ]
    return ", ".join(said)
