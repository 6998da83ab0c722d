"""Cancel a run, and verify that its jobs and pods have stopped."""

import time
from contextlib import suppress

from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound
from kubetrain_pipelines.kubeflow.run import RUN_ID, find_run, read_run, runs_named
from kubetrain_pipelines.kubeflow.stage_state import RunState
from kubetrain_pipelines.requests.say import Say

POLL_SECONDS = 0.5
TIMEOUT_SECONDS = 120.0
"""Long enough for pods to save a checkpoint in their grace period."""
LAUNCHER_SECONDS = 5.0
"""Argo kills a launcher up to a second after SIGTERM, on a busy node before it has deleted its job."""


def cancel_run(api: KfpApi, wanted: str, say: Say, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """
    Args:
        wanted: The ID of the run, its name, or the beginning of a recent ID.

    Raises:
        KfpError: if the name means several runs, or the run, or a job or pod of it, still runs after the timeout.
    """
    run_id = _unfinished_run(api, wanted)
    deadline = time.monotonic() + timeout_seconds
    try:
        if ended := _terminate(api, run_id) or _await_cancellation(api, run_id, deadline):
            say(f"run {run_id} had already ended ({ended}): nothing to cancel")
        else:
            say(f"run {run_id} is canceled")
        say(_await_jobs(api, run_id, deadline))
    except KeyboardInterrupt:
        say(f"not checked: whether run {run_id} and its jobs have stopped; `kubetrain cancel {run_id}` does it")
        raise


def _unfinished_run(api: KfpApi, wanted: str) -> str:
    """Return the ID of the run of this name that has not ended; if all have, that of the newest."""
    if RUN_ID.fullmatch(wanted):
        return wanted
    try:
        named = [*runs_named(api, wanted)]
    except NotFound:
        return str(find_run(api, wanted)["run_id"])
    unfinished = [item["run_id"] for item in named if not RunState.of(item).is_final]
    if len(unfinished) > 1:
        raise KfpError(f"several runs named '{wanted}' have not ended: give the ID of one ({', '.join(unfinished)})")
    return str((unfinished or [named[0]["run_id"]])[0])


def _terminate(api: KfpApi, run_id: str) -> RunState | None:
    """Terminate the run; if it had already ended, return how."""
    try:
        api.post(f"/runs/{run_id}:terminate")
    except KfpError:  # the server also refuses if the run is ending, or has ended
        state = read_run(api, run_id, {}).state
        if not state.is_final and state is not RunState.CANCELING:
            raise
        return state if state.is_final else None
    return None


def _await_cancellation(api: KfpApi, run_id: str, deadline: float) -> RunState | None:
    """Wait until the run has ended; if it was not canceled, because it ended at the same time, return how."""
    while not (state := read_run(api, run_id, {}).state).is_final:
        if time.monotonic() > deadline:
            raise KfpError(f"run {run_id} was canceled, but is still {state}: see its page in the UI")
        time.sleep(POLL_SECONDS)
    # The server calls a run failed that was canceled when it had only just started.
    return None if state in (RunState.CANCELED, RunState.FAILED) else state


def _await_jobs(api: KfpApi, run_id: str, deadline: float) -> str:
    """Return a sentence that says whether the jobs have stopped, which a machine without a cluster cannot verify."""
    from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

    namespace = api.connection.pods_namespace
    try:
        cluster = RunInCluster.connect(namespace, run_id)
        abandoned = time.monotonic() + LAUNCHER_SECONDS
        while remaining := cluster.still_running():
            if time.monotonic() > abandoned:
                with suppress(KubernetesError):  # the jobs that remain are reported
                    cluster.delete_jobs()
            if time.monotonic() > deadline:
                raise KfpError(
                    f"run {run_id} has ended, but these are still running: {', '.join(remaining)}; delete them with "
                    f"`kubectl delete -n {namespace}`"
                )
            time.sleep(POLL_SECONDS)
    except KubernetesError as error:
        return f"could not verify that its jobs have stopped: {error}"
    return "all of its jobs and pods have stopped"
