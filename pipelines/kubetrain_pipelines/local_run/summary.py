"""The summary at the end of a local run."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from kubetrain_components.evaluate_model.findings import describe_comparison, describe_unanswered
from kubetrain_components.evaluate_model.report import processes
from kubetrain_components.object_store.open_store import names_directory
from kubetrain_components.run.stages import COLLECT, EVALUATE, SYNC, TRAIN
from kubetrain_components.run.training_time import reported_time, summarize_time
from kubetrain_components.shown_values import number
from kubetrain_pipelines.local_run.record import RunRecord


def print_summary(console: Console, record: RunRecord) -> None:
    """Print the results of the run, and on the last line success or the error."""
    print_results(console, record)
    if record.status == "succeeded":
        console.print("[bold green]succeeded[/]")
    else:
        console.print(f"[bold red]error:[/] {escape(record.error)}", highlight=False, soft_wrap=True)


def print_results(console: Console, record: RunRecord) -> None:
    """Print the results of the run, and the last lines of what failed."""
    rows = summary_rows(record)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        # Not a rich table, which would truncate paths.
        console.print(f"[dim]{name:{width}}[/]  {escape(value)}", highlight=False, soft_wrap=True)
    if record.log_tail:
        console.print("\n".join(record.log_tail), markup=False, highlight=False, soft_wrap=True)


def summary_rows(record: RunRecord) -> list[tuple[str, str]]:
    """Return the results in order, without stages that the run did not reach."""
    rows = []
    if (dataset := record.result_of(SYNC)) and dataset["digest"]:
        rows.append(("dataset", f"{dataset['digest']}, {dataset['objects']} objects, {_downloaded(dataset)}"))
    if training := record.result_of(TRAIN):
        rows.append(("training", f"{training['step']} steps by {processes(training['world_size'])}"))
    if any(stage.name == TRAIN.name for stage in record.stages):
        rows += summarize_time(reported_time(training, record.output))
    if checkpoint := record.result_of(COLLECT):
        rows.append(("checkpoint", checkpoint["checkpoint"]))
    if evaluation := record.result_of(EVALUATE):
        rows += [(f"test {name}", number(value)) for name, value in sorted(evaluation["metrics"].items())]
        rows += [("remark", line) for line in describe_unanswered(evaluation)]
        rows += [("comparison", line) for line in describe_comparison(evaluation)]
        rows += (
            [("test samples", f"{evaluation['samples']} of {evaluation['split']}/")] if evaluation["samples"] else []
        )
    if model := record.model:
        rows += [("model", model["uri"])] if not names_directory(model["uri"]) else []
        rows += [("model files", model["path"])] if model["path"] else []
        rows += [("publication", model["publication"])]
    rows += [("report", str(record.workspace / "report.html"))]
    rows += [(stage.name, f"{stage.seconds:.1f} s") for stage in record.stages]
    rows += [("total", f"{record.seconds:.1f} s")]
    return rows


def _downloaded(dataset: dict[str, Any]) -> str:
    if dataset["downloaded"] == 0:
        return "nothing to download"
    return f"{dataset['downloaded']} downloaded"
