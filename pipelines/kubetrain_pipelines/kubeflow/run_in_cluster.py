"""The parts of a run that only the Kubernetes API knows: its Workflow, its pods' logs, and its jobs."""

from collections.abc import Iterator
from typing import Any, Self

from kubetrain_components.jobs.annotations import PROGRESS_ANNOTATION, RUN_ID, STAGE
from kubetrain_components.jobs.conditions import conditions_of
from kubetrain_components.jobs.job_identity import run_label
from kubetrain_components.jobs.job_kinds import PIPELINE_KINDS, JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.argo_run import WORKFLOWS
from kubetrain_components.jobs.kubernetes.errors import BadRequest, KubernetesError, NotFound
from kubetrain_components.jobs.kubernetes.log_position import LogPosition
from kubetrain_components.jobs.kubernetes.served import list_if_served
from kubetrain_components.jobs.kubernetes.troubles import pod_troubles
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.kubeflow.workflow_nodes import fnv1a, step_of
from kubetrain_trainer.reporting.progress_line import parse_progress

Progress = dict[str, str | float]

RUN_LABEL = "pipeline/runid"
NODE_NAME = "workflows.argoproj.io/node-name"
MAIN = "main"
ENDED = ("Succeeded", "Failed")
RETRY_SECONDS = 10.0
LOG_TIMEOUT_SECONDS = 10.0


class NotInThisCluster(KubernetesError):
    """The configured cluster does not have the run."""


class RunInCluster:
    def __init__(self, api: KubernetesApi, run_id: str) -> None:
        self.api = api
        self._run_id = run_id
        self._pod_names: dict[str, str] = {}
        self._positions: dict[str, LogPosition] = {}

    @classmethod
    def connect(cls, namespace: str, run_id: str) -> Self:
        """
        Raises:
            KubernetesError: if no cluster is configured, it does not answer, or it does not have the run.
        """
        found = cls(KubernetesApi.connect(namespace, RETRY_SECONDS), run_id)
        if not found.workflows():
            raise NotInThisCluster(
                f"the cluster of your KUBECONFIG has no workflow of run {run_id} in namespace {namespace}: use the "
                "KUBECONFIG and the --namespace of the run"
            )
        return found

    def workflows(self) -> list[Manifest]:
        return self._labeled_by_kfp(*WORKFLOWS)

    def log_of(self, node: str) -> str | None:
        """Return the log of a node's pod; None if the pod is gone or has not started."""
        return b"".join(found).decode(errors="replace") if (found := self._log(node)) is not None else None

    def new_lines_of(self, node: str, *, is_over: bool) -> list[str] | None:
        """Return the lines since the last call; None if the pod is gone or has not started.

        Args:
            is_over: Whether the last line is complete, even without a line break.
        """
        position = self._positions.setdefault(node, LogPosition())
        since = {"sinceTime": position.since_time} if position.since_time else {}
        position.expect_repeats()
        if (found := self._log(node, timestamps="true", **since)) is None:
            return None
        *lines, rest = b"".join(found).split(b"\n")
        lines += [rest] if rest and is_over else []
        return [line.partition(b" ")[2].decode(errors="replace") for line in position.new_lines(lines)]

    def _log(self, node: str, **query: Any) -> list[bytes] | None:
        name = self._pod_names.get(node) or self._find_pods().get(node)
        if name is None:
            return None
        path = self.api.path("v1", "pods", f"{name}/log")
        try:
            with self.api.stream(path, read_timeout=LOG_TIMEOUT_SECONDS, container=MAIN, **query) as stream:
                return list(stream)
        except (NotFound, BadRequest):
            return None

    def _find_pods(self) -> dict[str, str]:
        """Return the names of the run's pods by the IDs of their nodes. An ID is the name without its template."""
        for pod in self._labeled_by_kfp("v1", "pods"):
            name = node_name(pod)
            workflow = name.partition(".")[0].partition("(")[0]
            self._pod_names[f"{workflow}-{fnv1a(name)}"] = pod["metadata"]["name"]
        return self._pod_names

    def waiting(self) -> dict[str, str]:
        """Return what keeps the pods of steps from running, by the place of the step."""
        found = {}
        for pod in self._labeled_by_kfp("v1", "pods"):
            for trouble in pod_troubles("its pod", pod):
                found[step_of(node_name(pod))] = trouble.failure
        return found

    def still_running(self) -> list[str]:
        """Return the jobs and pods of the run that have not ended. Those that have ended stay for inspection."""
        found = [f"{kind.value} {job['metadata']['name']}" for kind, job in self._active_jobs()]
        pods = self._list("v1", "pods", self._our_label)
        return found + [f"pod {pod['metadata']['name']}" for pod in pods if pod["status"]["phase"] not in ENDED]

    def delete_jobs(self) -> None:
        """Delete the jobs of the run that have not ended; the cluster then deletes their pods."""
        for kind, job in self._active_jobs():
            path = self.api.path(*kind.traits.resource, job["metadata"]["name"])
            self.api.delete(path, uid=job["metadata"]["uid"])

    def progress(self) -> dict[str, Progress]:
        """Return the progress that the jobs report, by task."""
        notes = [job["metadata"].get("annotations", {}) for _, job in self._jobs()]
        found = {note[STAGE]: parse_progress(note.get(PROGRESS_ANNOTATION, "")) for note in notes if STAGE in note}
        return {stage.replace("_", "-"): progress for stage, progress in found.items() if progress}

    def _active_jobs(self) -> Iterator[tuple[JobKind, Manifest]]:
        return ((kind, job) for kind, job in self._jobs() if not _has_ended(job))

    def _jobs(self) -> Iterator[tuple[JobKind, Manifest]]:
        for kind in PIPELINE_KINDS:
            for job in list_if_served(self.api, kind.traits.resource, labelSelector=self._our_label):
                yield kind, job

    @property
    def _our_label(self) -> str:
        return f"{RUN_ID}={run_label(self._run_id)}"

    def _labeled_by_kfp(self, group_version: str, plural: str) -> list[Manifest]:
        return self._list(group_version, plural, f"{RUN_LABEL}={self._run_id}")

    def _list(self, group_version: str, plural: str, label: str) -> list[Manifest]:
        found = self.api.get(self.api.path(group_version, plural), labelSelector=label)
        items: list[Manifest] = (found or {}).get("items", [])
        return items


def node_name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"].get("annotations", {}).get(NODE_NAME, ""))


def _has_ended(job: Manifest) -> bool:
    ends = [condition for condition in conditions_of(job) if condition["type"] in (*ENDED, "Complete")]
    return any(condition["status"] == "True" for condition in ends)
