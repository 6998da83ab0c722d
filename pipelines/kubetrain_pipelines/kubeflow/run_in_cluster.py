"""The parts of a run that only the Kubernetes API knows: why it failed, its pods' logs, and its jobs."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Self

from kubetrain_components.jobs.job import LABEL_LENGTH, LABEL_PREFIX, PROGRESS_ANNOTATION, slug
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError, UnknownKind
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.progress_line import parse_progress

Progress = dict[str, str | float]

WORKFLOWS = ("argoproj.io/v1alpha1", "workflows")
RUN_LABEL = "pipeline/runid"
NODE_NAME = "workflows.argoproj.io/node-name"
STAGE = LABEL_PREFIX + "stage"
MAIN = "main"
ENDED = ("Succeeded", "Failed")
RETRY_SECONDS = 10.0
LOG_TIMEOUT_SECONDS = 10.0
# A step's node has a name like workflow(0).root(0).sync-dataset(0).executor(0); without retries it has no numbers.
STEP = re.compile(r"\.(?P<task>[^.()]+)(\([^()]*\))*\.executor(\(\d+\))?$")
PREFIX = re.compile(r"^main: Error \(exit code \d+\)(: )?")


class NotInThisCluster(KubernetesError):
    """The configured cluster does not have the run."""


class RunInCluster:
    def __init__(self, api: KubernetesApi, run_id: str) -> None:
        self._api = api
        self._run_id = run_id

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

    def causes(self) -> list[tuple[str, str]]:
        """Return the task and the error message of each failed step, from its last attempt."""
        nodes = [node for workflow in self.workflows() for node in workflow.get("status", {}).get("nodes", {}).values()]
        failed = [
            node
            for node in nodes
            if node.get("type") == "Pod" and node.get("phase") in ("Failed", "Error") and node.get("message")
        ]
        last = {task_of(node["name"]): node["message"] for node in sorted(failed, key=lambda each: each["startedAt"])}
        return [(task, PREFIX.sub("", message) or message) for task, message in last.items()]

    def logs(self) -> Iterator[tuple[str, str]]:
        """Yield the task and the log of each step, in the order in which the pods were created."""
        pods = [pod for pod in self._labeled_by_kfp("v1", "pods") if STEP.search(_node_name(pod))]
        for pod in sorted(pods, key=lambda each: each["metadata"]["creationTimestamp"]):
            path = self._api.path("v1", "pods", f"{pod['metadata']['name']}/log")
            with self._api.stream(path, read_timeout=LOG_TIMEOUT_SECONDS, container=MAIN) as stream:
                yield task_of(_node_name(pod)), b"".join(stream).decode(errors="replace")

    def still_running(self) -> list[str]:
        """Return the jobs and pods of the run that have not ended. Those that have ended stay for inspection."""
        found = [f"{kind} {job['metadata']['name']}" for kind, job in self._jobs() if not _has_ended(job)]
        pods = self._labeled_by_us("v1", "pods")
        return found + [f"pod {each['metadata']['name']}" for each in pods if each["status"]["phase"] not in ENDED]

    def progress(self) -> dict[str, Progress]:
        """Return the progress that the jobs report, by task."""
        notes = [job["metadata"].get("annotations", {}) for _, job in self._jobs()]
        found = {note[STAGE]: parse_progress(note.get(PROGRESS_ANNOTATION, "")) for note in notes if STAGE in note}
        return {stage.replace("_", "-"): progress for stage, progress in found.items() if progress}

    def _jobs(self) -> Iterator[tuple[str, Manifest]]:
        for kind in JobKind:
            with contextlib.suppress(UnknownKind):
                for job in self._labeled_by_us(*kind.traits.resource):
                    yield kind.value, job

    def _labeled_by_us(self, group_version: str, plural: str) -> list[Manifest]:
        return self._list(group_version, plural, f"{LABEL_PREFIX}run-id={slug(self._run_id, LABEL_LENGTH)}")

    def _labeled_by_kfp(self, group_version: str, plural: str) -> list[Manifest]:
        return self._list(group_version, plural, f"{RUN_LABEL}={self._run_id}")

    def _list(self, group_version: str, plural: str, label: str) -> list[Manifest]:
        found = self._api.get(self._api.path(group_version, plural), labelSelector=label)
        items: list[Manifest] = (found or {}).get("items", [])
        return items


def task_of(node_name: str) -> str:
    step = STEP.search(node_name)
    return step["task"] if step else re.sub(r"\(\d+\)$", "", node_name.rpartition(".")[2])


def _node_name(pod: dict[str, Any]) -> str:
    return str(pod["metadata"].get("annotations", {}).get(NODE_NAME, ""))


def _has_ended(job: Manifest) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(each["type"] in (*ENDED, "Complete") and each["status"] == "True" for each in conditions)
