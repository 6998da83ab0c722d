"""Where a step runs, and with which adapters: one machine, or a cluster."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.stage import Stage
from kubetrain_trainer.training_output import TrainingOutput

WORKSPACE_VARIABLE = "KUBETRAIN_WORKSPACE"
"""The paths of a local run reach its steps through the environment: kfp.local rewrites "python3" in arguments."""


class Site(Protocol):
    def sync(self, parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> dict[str, Any]:
        """What bringing the dataset found and did; where pods find it is in there for DatasetPlace."""
        ...

    def data_dir(self, dataset: DatasetPlace) -> Path:
        """Where a training pod sees the dataset version."""
        ...

    def output(self, run_id: str) -> TrainingOutput:
        """What training pods write, in the same place for them and for this step."""
        ...

    def mounts(self, dataset: DatasetPlace, output_claim: str) -> tuple[ClaimMount, ...]:
        """By which training pods see both."""
        ...

    def backend(self) -> AbstractContextManager[JobBackend]: ...

    def stage(self, name: str, run_id: str) -> AbstractContextManager[Stage]: ...


def this_site(environment: Mapping[str, str] = os.environ) -> Site:
    if workspace := environment.get(WORKSPACE_VARIABLE):
        from kubetrain_components.sites.local import LocalSite

        return LocalSite(Path(workspace))
    from kubetrain_components.sites.cluster import ClusterSite

    return ClusterSite()
