"""A local run as the command line and Python ask for it: with settings as text, and a folder of your own code."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.definitions.pipeline_parameters import parameters_of
from kubetrain_pipelines.definitions.project import project
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.local_run.run import run_local
from kubetrain_pipelines.local_run.storage import local_parameters
from kubetrain_pipelines.requests import bring_code, say
from kubetrain_pipelines.requests.parse_parameters import parse_parameters, read_parameters, secret_warnings
from kubetrain_pipelines.requests.run_view import progress_view
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig


def run_requested(
    pipeline: str, workspace: Path, pairs: Iterable[str], params: Path | None, code: Path | None
) -> RunRecord:
    """Run the pipeline and show its progress.

    Raises:
        KubetrainError: if the run cannot start. A later failure is in the returned record.
    """
    project()  # an error in it would otherwise be found in the process of the pipeline, without a cause
    pairs = [*pairs]
    in_file = read_parameters(params) if params else {}
    check_apply_here(pipeline, [*in_file, *(pair.partition("=")[0] for pair in pairs)])
    brought = bring_code.pack(code, without=workspace)
    parameters = parse_parameters(local_parameters(pipeline), [*pairs, *bring_code.as_pairs(brought)], params)
    for warning in secret_warnings(parameters):
        say.print_line(f"warning: {warning}")
    bring_code.check_is_here(brought, parameters.get("train_config", {}))
    unpack_code = partial(bring_code.unpack_here, brought, workspace / "code")
    with progress_view() as view:
        return run_local(pipeline, workspace, parameters, view, unpack_code)


def check_apply_here(pipeline: str, names: Iterable[str]) -> None:
    """
    Raises:
        InvalidSetting: if a setting is one of the pipeline's for clusters only.
    """
    of_clusters = {item.name for item in parameters_of(pipeline)} | {*Placement.names(), *Storage.names()}
    here = {parameter.name for parameter in local_parameters(pipeline)} | {*TrainConfig.names()}
    for name in names:
        if name in of_clusters - here:
            raise InvalidSetting(f"{name} applies only to a run on a cluster: leave it out here")
