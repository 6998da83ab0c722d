"""Show the progress of a run until it has ended, and leave it alone if it cannot be followed to its end."""

import math
from collections.abc import Mapping

from kubetrain_pipelines.kubeflow.follow_run import follow_run
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.run_status import check_succeeded
from kubetrain_pipelines.run_view import progress_view


def watch_run(
    api: KfpApi,
    run_id: str,
    titles: Mapping[str, str] | None,
    next_steps: str,
    *,
    timeout_seconds: float = math.inf,
) -> Run:
    """Return the run when it has succeeded.

    Args:
        next_steps: How to follow and cancel the run, which is shown if it continues.

    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
        KfpError: if it could not be followed to its end.
    """
    with progress_view() as view:
        try:
            run = follow_run(api, run_id, titles, view, timeout_seconds=timeout_seconds)
        except (KeyboardInterrupt, KfpError):
            view.say(f"run {run_id} continues: {next_steps}")
            raise
    check_succeeded(api, run)
    return run
