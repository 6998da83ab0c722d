"""`kubetrain cancel`: stop a run, jobs in a cluster, or what runs for a folder on this machine."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.pod_end import has_ended
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_pipelines.cli.find import FoundRun, find
from kubetrain_pipelines.cli.run import stopped_with_checkpoint
from kubetrain_pipelines.jobs.cluster_jobs import ClusterJobs, FoundJob
from kubetrain_pipelines.jobs.local_jobs import owners_in
from kubetrain_pipelines.kubeflow.cancel_run import TIMEOUT_SECONDS, cancel_run
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.requests.say import print_line
from kubetrain_pipelines.status.local import read_local
from kubetrain_trainer.errors import KubetrainError

POLL_SECONDS = 0.5


def cancel_and_show(name: str, access: ConnectionOptions) -> None:
    match find(name, access):
        case FoundRun(api=api):
            cancel_run(api, name, print_line)
        case KubernetesApi() as api:
            cancel_jobs(api, name)
        case path:
            cancel_here(path)


def cancel_jobs(api: KubernetesApi, name: str) -> None:
    """Delete the jobs of this name, or of the run with this ID, that have not ended. The others stay for inspection.

    Raises:
        KubetrainError: if there are none, or it is not certain that their pods have stopped.
    """
    found = ClusterJobs(api, all_events=False).find(name)
    jobs = [(kind, job) for kind, job in found if not job_state(kind, job, []).phase.is_final]
    if not jobs:
        return print_line(f"{name} had already ended: nothing to cancel")
    for kind, job in jobs:
        api.delete(api.path(*kind.traits.resource, job["metadata"]["name"]), uid=job["metadata"]["uid"])
        print_line(f"deleted {kind} {job['metadata']['name']}")
    _await_end(lambda: [pod for job in jobs for pod in _unended_pods(api, job)])
    return print_line("all of its pods have stopped")


def _unended_pods(api: KubernetesApi, found: FoundJob) -> list[str]:
    kind, job = found
    selector = f"{kind.traits.job_name_label}={job['metadata']['name']}"
    pods = (api.list_all(api.path("v1", "pods"), labelSelector=selector) or {}).get("items") or []
    return [f"pod {pod['metadata']['name']}" for pod in pods if not has_ended(pod)]


def cancel_here(path: Path) -> None:
    """Ask the process of a workspace or of an output folder to end, as Ctrl-C does, and wait until it has.

    Raises:
        KubetrainError: if the folder has no run and no job, or it still runs after the timeout.
    """
    name = read_local(path).name
    if not _running(path, name):
        return print_line(f"{name} had already ended: nothing to cancel")
    for owner in owners_in(path):
        with suppress(ProcessLookupError):
            os.kill(int(owner["pid"]), signal.SIGTERM)
    print_line(f"asked {name} to stop")
    _await_end(lambda: _running(path, name))
    run_id = stopped_with_checkpoint(path, since=0)
    kept = f", and saved a checkpoint: --set train.resume_from={run_id} continues from it" if run_id else ""
    return print_line(f"{name} has stopped{kept}")


def _running(path: Path, name: str) -> list[str]:
    """Return the name while it runs. The job of a training that is stopped is deleted."""
    with suppress(KubetrainError):
        now = read_local(path)
        return [name] if now.name == name and not now.is_over else []
    return []


def _await_end(running: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while names := running():
        if time.monotonic() > deadline:
            raise KubetrainError(
                f"{', '.join(names)} still runs {TIMEOUT_SECONDS:g} s after it was asked to stop: end it by force, "
                "with `kubectl delete --force` or `kill -9`"
            )
        time.sleep(POLL_SECONDS)
