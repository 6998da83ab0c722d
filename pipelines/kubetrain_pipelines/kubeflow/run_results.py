"""The metrics and the published model of a run, from the logs of its steps.

The v2beta1 API of Kubeflow Pipelines has fields for the outputs of tasks, but leaves them empty.
"""

import re
from contextlib import suppress

from kubetrain_components.run.metrics_artifact import numbers_in
from kubetrain_components.run.stages import EVALUATE, PROMOTE, RunStage
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import RunState
from kubetrain_pipelines.kubeflow.step_logs import NoLog, StepLogs

PUBLISHED = re.compile(r"^((?:already )?published as (.+/)(?:,.*)?)$", re.M)


def metrics_of(api: KfpApi, run: Run) -> dict[str, float]:
    """Return the metrics on the test split; none if the model has not been evaluated.

    Raises:
        NoLog: if the step's log cannot be read.
    """
    return numbers_in(_log_of(api, run, EVALUATE))


def model_uri_of(api: KfpApi, run: Run) -> str:
    """Return the URI of the published version; an empty string if no model has been published.

    Raises:
        NoLog: if the step's log cannot be read.
    """
    return published_in(_log_of(api, run, PROMOTE))


def publication_of(api: KfpApi, run: Run) -> str:
    """Return what became of the model, such as: published as s3://…/, now the latest; empty if it is not known."""
    said = ""
    with suppress(NoLog):
        said, _ = _published(_log_of(api, run, PROMOTE))
    return f"{said}, so nothing was trained" if said.startswith("already") else said


def published_in(log: str) -> str:
    """Return the URI that the step of the promotion wrote last; empty if it wrote none."""
    return _published(log)[1]


def _published(log: str) -> tuple[str, str]:
    """Return the last sentence about a publication, and the URI in it."""
    return next(reversed(PUBLISHED.findall(log)), ("", ""))


def _log_of(api: KfpApi, run: Run, stage: RunStage) -> str:
    """Return what all steps of a stage wrote that succeeded."""
    succeeded = [item for item in run.stages if item.task == stage.task and item.state is RunState.SUCCEEDED]
    logs = StepLogs(api, run)
    texts = [log.text for log in logs.of(succeeded)]
    if succeeded and not texts:
        raise NoLog(f"the log of '{stage.title}' of run {run.id} cannot be read: {logs.trouble or 'it was not kept'}")
    return "\n".join(texts)
