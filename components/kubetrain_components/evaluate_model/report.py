"""Render a run as one self-contained HTML page: outcome, curves, confusion matrix, errors, timeline, configuration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from kubetrain_components.evaluate_model.findings import (
    describe_comparison,
    describe_unanswered,
    most_confused,
    worst_confusions,
)
from kubetrain_components.run.training_time import TrainingTime, describe_cost, reported_time, time_rows
from kubetrain_components.secret_values import shareable
from kubetrain_components.shown_values import number
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.entry import parse_entry
from kubetrain_trainer.settings.metric import parse_metric
from kubetrain_trainer.some_of import some_of

HEADLINES = {"succeeded": "Succeeded", "failed": "Failed", "stopped": "Stopped"}


def run_report(run: Mapping[str, Any], config: dict[str, Any], output: TrainingOutput | None) -> str:
    """Return the report of a succeeded, failed or stopped run, from its run.json and its training output."""
    failed_stage = next((stage["name"] for stage in run["stages"] if stage["status"] != "finished"), "")
    headline = HEADLINES[run["status"]] + (f" in {failed_stage}" if failed_stage else "")
    return _render(
        {
            "title": run["pipeline"],
            "status": run["status"],
            "headline": headline,
            "error": run["error"],
            "log_tail": run["log_tail"],
            "facts": _run_facts(run),
            "timeline": _timeline(run["stages"]),
            "time": time_rows(reported_time(run["training"], output)),
            "parameters": {"run_id": run["run_id"], "workspace": run["workspace"]} | _other_settings(run),
            "config": shareable(config),
        },
        output,
    )


def _other_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run that are none of its training."""
    of_training = {TrainConfig.public_name(name) for name in TrainConfig.names()}
    return {name: value for name, value in run["settings"].items() if name not in of_training}


def training_report(output: TrainingOutput, refusal: str = "") -> str:
    """Return the report of a training and its evaluation, with the gate's refusal, for a step that has no run.json."""
    recorded = output.read_config()
    return _render(
        {
            "title": f"{recorded['framework']} training",
            "status": "failed" if refusal else "succeeded",
            "headline": "Refused by the gate" if refusal else "Evaluated",
            "error": refusal,
            "log_tail": (),
            "facts": [
                ("Dataset", recorded["dataset_digest"]),
                ("Started", recorded["created"]),
                *_connections(output.read_result() or {}),
            ],
            "timeline": [],
            "time": time_rows(reported_time({}, output)),
            "parameters": {"run_id": output.path.name},
            "config": shareable(recorded["config"]),
        },
        output,
    )


def _render(page: dict[str, Any], output: TrainingOutput | None) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"number": number, "some": some_of}
    defaults, config = TrainConfig().to_dict(), page["config"].items()
    evaluation = _evaluation(output)
    rows = _rows(output, page["config"]) if output else []
    return environment.get_template("report.html.j2").render(
        **{**page, "headline": _headline(page, evaluation), "facts": [*page["facts"], *slow_processes(rows)]},
        **evaluation,
        curves=_curves(rows, page["config"]),
        changed={TrainConfig.public_name(name): value for name, value in config if value != defaults.get(name)},
        unchanged={TrainConfig.public_name(name): value for name, value in config if value == defaults.get(name)},
    )


def _headline(page: Mapping[str, Any], evaluation: Mapping[str, Any]) -> str:
    """Add what was trained: your program, or the model and the number of its classes."""
    entry = parse_entry(page["config"].get("entry", {}))
    classes = (evaluation["evaluation"] or {}).get("classes", ())
    what = entry.name if entry else page["config"].get("model", "")
    return f"{page['headline']}: {what}" + (f", {len(classes):,} classes" if classes else "")


def _rows(output: TrainingOutput, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return only what the page shows of the rows, because there may be a million of them."""
    shown = ("step", "loss", "validation_loss", f"validation_{parse_metric(config['metric']).name}", "stragglers")
    return [{name: row[name] for name in shown if name in row} for row in read_metrics(output.metrics)]


def processes(count: int) -> str:
    return f"{count} process{'es' * (count != 1)}"


def _run_facts(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    dataset, training = run["dataset"], run["training"]
    facts = [("Duration", f"{run['seconds']:.1f} s"), ("Started", _utc(run["started"]))]
    if dataset:
        facts.append(("Dataset", f"{dataset['digest']} ({dataset['objects']:,} objects)"))
    if training:
        facts.append(("Training", f"{training['step']:,} steps, {processes(training['world_size'])}"))
        facts += _connections(training)
        cost = describe_cost(TrainingTime.from_json(training["time"]))
        facts += [("Cost", cost)] if cost else []
    if run["checkpoint"]:
        facts.append(("Checkpoint", run["checkpoint"]["checkpoint"]))
    if run["model"]:
        facts.append(("Model", run["model"]["uri"]))
    return facts


def _connections(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how the processes were connected, and what the preflight measured, as far as the training reported it."""
    return [(name.capitalize(), result[name]) for name in ("network", "preflight") if name in result]


def _timeline(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add to each stage the position and width of its bar, in percent of the whole run."""
    if not stages:
        return []
    start = stages[0]["started"]
    total = max(stage["started"] + stage["seconds"] for stage in stages) - start or 1.0
    return [
        {
            **stage,
            "left": round(100 * (stage["started"] - start) / total, 2),
            "width": round(100 * stage["seconds"] / total, 2),
        }
        for stage in stages
    ]


def _curves(rows: list[dict[str, Any]], config: Mapping[str, Any]) -> dict[str, Markup]:
    if not rows:
        return {}
    # The import takes half a second, and a run that failed early has no curves.
    from kubetrain_components.evaluate_model.plots import curves

    pictures = curves(rows, parse_metric(config["metric"]).name)
    # Our own SVG, drawn from numbers, is the only part of the page that is not escaped.
    return {title: Markup(picture) for title, picture in pictures.items()}  # noqa: S704


def _evaluation(output: TrainingOutput | None) -> dict[str, Any]:
    """Return what the page shows of evaluation.json; empty values if there is none."""
    none = dict.fromkeys(("remarks", "classes", "matrix", "worst", "misclassified"), ())
    empty: dict[str, Any] = {"evaluation": None, **none}
    try:
        evaluation = output.read_evaluation() if output else None
    except KubetrainError:
        evaluation = None
    if evaluation is None:
        return empty
    remarks = [*describe_unanswered(evaluation), *describe_comparison(evaluation)]
    shown = {**empty, "evaluation": evaluation, "remarks": remarks}
    if "confusion" in evaluation:
        classes, matrix = most_confused(evaluation["classes"], evaluation["confusion"])
        samples = dict(zip(evaluation["classes"], map(sum, evaluation["confusion"]), strict=True))
        shown |= {
            "classes": classes,
            "matrix": [_shaded(row, samples[name]) for name, row in zip(classes, matrix, strict=True)],
            "worst": worst_confusions(evaluation["classes"], evaluation["confusion"]),
            "misclassified": [item for item in evaluation["misclassified"] if item["picture"]],
        }
    return shown


def _shaded(row: Sequence[int], samples: int) -> list[tuple[int, int]]:
    """Pair each count with its percentage of the class's samples, which sets the shade of its cell."""
    return [(count, round(100 * count / max(samples, 1))) for count in row]


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def slow_processes(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a fact for each process, node and part that was slow: the largest delay, and the first and last step."""
    found: dict[tuple[int, str, str], list[tuple[float, int]]] = {}
    for row in rows:
        for straggler in row.get("stragglers", ()):
            key = straggler["rank"], straggler["node"], straggler["part"]
            found.setdefault(key, []).append((straggler["delay_share"], row["step"]))
    for (rank, node, part), delays in found.items():
        largest, (_, first), (_, last) = max(delays)[0], delays[0], delays[-1]
        where = f"rank {rank} on node {node}, steps {first:,} to {last:,}"
        yield "Slow process", f"{where}: the others waited up to {largest:.0%} of a step for its {part}"
