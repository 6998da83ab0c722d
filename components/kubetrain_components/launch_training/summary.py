"""The Markdown summary of a training job on the run's page: outcome, commands to inspect it, manifest."""

from collections.abc import Mapping
from typing import Any

from kubetrain_components import OUTPUT_PATH
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.manifest_text import as_yaml
from kubetrain_components.run.markdown import escaped, table
from kubetrain_components.run.training_time import LOST, TrainingTime, describe_cost, summarize_time, time_rows
from kubetrain_components.secret_values import VARIABLES, hidden_variable
from kubetrain_trainer.processes.process_group import counted

ZEROS = "The zeros at the end of names stand for random characters.\n\n"
COMMANDS = """\
kubectl get {kind} {name} --output=yaml
kubectl get pods --selector={label}={name}
kubectl logs --selector={label}={name} --prefix --tail=100"""


def training_summary(
    training: TrainingJob, result: Mapping[str, Any], seconds: Mapping[str, float], progress: str
) -> str:
    """Return the summary of a finished training job.

    Args:
        seconds: Duration of each part.
        progress: Last line of rank 0 with its step, loss and speed.
    """
    job = training.to_job()
    manifest = as_yaml(_without_secrets(manifests_of(job)))
    name = job.identity.name
    commands = COMMANDS.format(kind=job.kind.value.lower(), name=name, label=job.kind.traits.job_name_label)
    time = TrainingTime.from_json(result["time"])
    facts = {
        "job": f"{job.kind.value} `{name}`",
        "launcher": Launcher.of(job.kind).value,
        "image": f"`{training.placement.image}`",
        "pods": f"{_pods(training)}, each with {counted(training.processes_in_pod, 'process', 'processes')}",
        "dataset": f"`{training.dataset_digest or 'none'}`",
        **{name: escaped(result[name]) for name in ("network", "preflight") if name in result},
        "last checkpoint": _checkpoint(result),
        "output": f"folder `{training.run_id}` of {_place_of_output(training)}",
        **{part: f"{each:.0f} s" for part, each in seconds.items()},
        "final progress line": f"`{escaped(progress)}`",
        "cost": describe_cost(time) or "unknown",
    }
    return (
        f"# {name}\n\n{table(facts)}\n"
        f"## Time\n\n{_time_table(time)}\n"
        f"## Inspect it\n\nIn the run's namespace:\n\n```sh\n{commands}\n```\n\n"
        f"## Manifest\n\n{ZEROS if job.is_indexed else ''}```yaml\n{manifest}```\n"
    )


def _place_of_output(training: TrainingJob) -> str:
    claims = [mount.claim for mount in training.mounts if mount.path == OUTPUT_PATH]
    return f"PVC `{claims[0]}`" if claims else "`storage.output`"


def _without_secrets(value: Any, field: str = "") -> Any:
    """Return manifests without the values of variables that may be secrets."""
    if isinstance(value, dict):
        return {name: _without_secrets(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [hidden_variable(item) if field == VARIABLES else _without_secrets(item) for item in value]
    return value


def _time_table(time: TrainingTime) -> str:
    rows = [f"| {row.meaning} | {row.duration} | {row.percent:.0f}% |" for row in time_rows(time)]
    losses = [f"- {loss}" for name, loss in summarize_time(time) if name == LOST]
    shown = ["", "Largest losses:", "", *losses] if losses else []
    return "".join(f"{line}\n" for line in ["| spent on | time | share |", "| --- | --- | --- |", *rows, *shown])


def _pods(training: TrainingJob) -> str:
    most = training.most_workers
    return f"{training.min_workers} to {most}" if 0 < training.min_workers < most else f"{most}"


def _checkpoint(result: Mapping[str, Any]) -> str:
    if not result["checkpoint"]:
        return "not known here, because the pods that reported it were deleted: the next step verifies it"
    return f"`{result['checkpoint']}`, after {result['step']} steps"
