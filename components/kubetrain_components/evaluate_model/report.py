"""A run as one HTML page that needs no network: verdict, curves, confusions, errors, timeline, configuration."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kubetrain_components.evaluate_model.confusion import most_confused, worst_confusions
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.metrics_log import read_metrics
from kubetrain_trainer.training_output import TrainingOutput

VERDICTS = {"succeeded": "Succeeded", "failed": "Failed", "stopped": "Stopped"}


def run_report(run: Mapping[str, Any], output: TrainingOutput | None) -> str:
    """The report of a whole run, however it ended, from its run.json and what its training wrote."""
    failed_stage = next((stage["name"] for stage in run["stages"] if stage["status"] != "finished"), "")
    headline = VERDICTS[run["status"]] + (f" in {failed_stage}" if failed_stage else "")
    return _render(
        {
            "title": run["pipeline"],
            "status": run["status"],
            "headline": headline,
            "error": run["error"],
            "log_tail": run["log_tail"],
            "facts": _run_facts(run),
            "timeline": _timeline(run["stages"]),
            "parameters": {**run["parameters"], "run_id": run["run_id"], "workspace": run["workspace"]},
            "config": run["config"],
        },
        output,
    )


def training_report(output: TrainingOutput) -> str:
    """The report of a training and its evaluation, for the step that knows no more of the run."""
    recorded = output.read_config()
    return _render(
        {
            "title": f"{recorded['framework']} training",
            "status": "succeeded",
            "headline": "Evaluated",
            "error": "",
            "log_tail": (),
            "facts": [("Dataset", recorded["dataset_digest"]), ("Started", recorded["created"])],
            "timeline": [],
            "parameters": {"run_id": output.path.name},
            "config": recorded["config"],
        },
        output,
    )


def _render(page: dict[str, Any], output: TrainingOutput | None) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    usual = TrainConfig().to_dict()
    evaluation = _evaluation(output)
    return environment.get_template("report.html.j2").render(
        **page,
        **evaluation,
        curves=_curves(output, page["config"]),
        changed={name for name, value in page["config"].items() if value != usual.get(name)},
    )


def _run_facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    dataset, training = run["dataset"], run["training"]
    facts = [("Time", f"{run['seconds']:.1f} s"), ("Started", _moment(run["started"]))]
    if dataset:
        facts.append(("Dataset", f"{dataset['digest']}: {dataset['objects']:,} objects"))
    if training:
        facts.append(("Training", f"{training['step']:,} steps by {training['world_size']} processes"))
    if run["checkpoint"]:
        facts.append(("Checkpoint", run["checkpoint"]["checkpoint"]))
    if run["model"]:
        facts.append(("Model", run["model"]["uri"]))
    return facts


def _timeline(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each stage with where its bar begins and how long it is, in percent of the whole."""
    if not stages:
        return []
    begin = stages[0]["started"]
    whole = max(stage["started"] + stage["seconds"] for stage in stages) - begin or 1.0
    return [
        {
            **stage,
            "left": round(100 * (stage["started"] - begin) / whole, 2),
            "width": round(100 * stage["seconds"] / whole, 2),
        }
        for stage in stages
    ]


def _curves(output: TrainingOutput | None, config: Mapping[str, Any]) -> dict[str, Markup]:
    rows = list(read_metrics(output.metrics)) if output else []
    if not rows:
        return {}
    # Half a second to import, which a run that failed early does not need.
    from kubetrain_components.evaluate_model.plots import curves

    # Drawn by us from numbers: the only part of the page that is not escaped.
    return {title: Markup(picture) for title, picture in curves(rows, str(config["metric"])).items()}  # noqa: S704


def _evaluation(output: TrainingOutput | None) -> dict[str, Any]:
    """What the page shows of evaluation.json; empty where the run did not get that far."""
    empty: dict[str, Any] = {"evaluation": None, "classes": [], "matrix": [], "worst": [], "misclassified": []}
    try:
        evaluation = output.read_evaluation() if output else None
    except KubetrainError:
        evaluation = None
    if evaluation is None:
        return empty
    shown = {**empty, "evaluation": evaluation}
    if "confusion" in evaluation:
        classes, matrix = most_confused(evaluation["classes"], evaluation["confusion"])
        shown |= {
            "classes": classes,
            "matrix": [_shaded(row) for row in matrix],
            "worst": worst_confusions(evaluation["classes"], evaluation["confusion"]),
            "misclassified": [each for each in evaluation["misclassified"] if each["picture"]],
        }
    return shown


def _shaded(row: Sequence[int]) -> list[tuple[int, int]]:
    """Each count with its share of the row in percent, which is how dark its cell is."""
    total = sum(row) or 1
    return [(count, round(100 * count / total)) for count in row]


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
