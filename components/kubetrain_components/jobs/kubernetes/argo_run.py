"""The Argo Workflow that this process is a step of: jobs belong to it, and it knows whether its run was terminated."""

import os
import socket
from collections.abc import Mapping
from typing import Self

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError


class ArgoRun:
    def __init__(self, api: KubernetesApi, owner: Manifest) -> None:
        self.owner = owner
        """The reference that ends a job with its Workflow, should nothing else end it."""
        self._api = api

    @classmethod
    def of_this_process(cls, api: KubernetesApi, environment: Mapping[str, str] = os.environ) -> Self | None:
        """None: this is no step of a Workflow."""
        if "KUBERNETES_SERVICE_HOST" not in environment:
            return None
        name = environment.get("KFP_POD_NAME") or socket.gethostname()
        pod = api.get(api.path("v1", "pods", name)) or {"metadata": {}}
        for owner in pod["metadata"].get("ownerReferences") or []:
            if owner["kind"] == "Workflow":
                return cls(api, {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")})
        return None

    def goes_on(self) -> bool:
        """Whether nobody terminated it; not to know counts as the end: a deleted job resumes, a lost one holds GPUs."""
        try:
            found = self._api.get(self._api.path(self.owner["apiVersion"], "workflows", self.owner["name"]))
        except KubetrainError:
            return False
        if found is None or found["metadata"]["uid"] != self.owner["uid"]:
            return False
        spec = found["spec"]
        # The deadline of zero is how Kubeflow Pipelines terminates a run, the shutdown how Argo does.
        return spec.get("activeDeadlineSeconds") != 0 and not spec.get("shutdown")
