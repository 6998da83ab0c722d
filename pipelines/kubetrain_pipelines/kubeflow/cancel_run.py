"""`kubetrain cancel`: end a run, and see that nothing of it goes on holding CPUs."""

import time

from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.run import RunState, find_run, read_run

POLL_SECONDS = 0.5
MAX_SECONDS = 120.0
"""For pods that save a checkpoint in their time of grace."""


def cancel_and_show(api: KfpApi, wanted: str, *, longest_seconds: float = MAX_SECONDS) -> None:
    """
    Raises:
        KfpError: where it, or a job of it, goes on.
    """
    run_id = find_run(api, wanted)["run_id"]
    deadline = time.monotonic() + longest_seconds
    _terminate(api, run_id)
    _await_end(api, run_id, deadline)
    _await_jobs(api, run_id, deadline)


def _terminate(api: KfpApi, run_id: str) -> None:
    try:
        api.post(f"/runs/{run_id}:terminate")
    except KfpError:  # also where it is refused as the run ends already
        state = read_run(api, run_id, {}).state
        if not state.is_final and state is not RunState.CANCELING:
            raise


def _await_end(api: KfpApi, run_id: str, deadline: float) -> None:
    while not (run := read_run(api, run_id, {})).state.is_final:
        if time.monotonic() > deadline:
            raise KfpError(f"run {run_id} was told to end, but is {run.state.value} still: look at its page in the UI")
        time.sleep(POLL_SECONDS)
    print(f"run {run_id} is {run.state.value}", flush=True)


def _await_jobs(api: KfpApi, run_id: str, deadline: float) -> None:
    from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

    try:
        cluster = RunInCluster.connect(api.connection.pods_namespace, run_id)
        while remaining := cluster.at_work():
            if time.monotonic() > deadline:
                raise KfpError(
                    f"run {run_id} has ended, but these go on: {', '.join(remaining)}; delete them with "
                    f"`kubectl delete -n {api.connection.pods_namespace}`"
                )
            time.sleep(POLL_SECONDS)
    except KubernetesError as trouble:
        print(f"that none of its jobs goes on was not proven: {trouble}")
    else:
        print("none of its jobs or pods is left at work")
