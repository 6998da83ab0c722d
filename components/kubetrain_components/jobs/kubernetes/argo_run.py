"""The Argo Workflow that this process is a step of: it owns the jobs, and shows whether the run was terminated."""

import os
import socket
from typing import Self

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

WORKFLOWS = ("argoproj.io/v1alpha1", "workflows")


class ArgoRun:
    def __init__(self, api: KubernetesApi, owner: Manifest) -> None:
        self.owner = owner
        """Owner reference for jobs: the cluster deletes them together with the Workflow."""
        self._api = api

    @classmethod
    def of_this_process(cls, api: KubernetesApi) -> Self | None:
        """Return None if this process is not a step of a Workflow."""
        if "KUBERNETES_SERVICE_HOST" not in os.environ:
            return None
        name = os.environ.get("KFP_POD_NAME") or socket.gethostname()
        pod = api.get(api.path("v1", "pods", name)) or {"metadata": {}}
        for owner in pod["metadata"].get("ownerReferences") or []:
            if owner["kind"] == "Workflow":
                return cls(api, {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")})
        return None

    def is_active(self) -> bool:
        """Return False if the run was terminated, or if in doubt: a deleted job can resume, a lost one holds GPUs."""
        try:
            found = self._api.get(self._api.path(self.owner["apiVersion"], "workflows", self.owner["name"]))
        except KubetrainError:
            return False
        if found is None or found["metadata"]["uid"] != self.owner["uid"]:
            return False
        spec = found["spec"]
        # Kubeflow Pipelines terminates a run by a deadline of zero, Argo by a shutdown strategy.
        return spec.get("activeDeadlineSeconds") != 0 and not spec.get("shutdown")
