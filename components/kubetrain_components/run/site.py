"""The port to the site that a step runs on: one machine or a cluster."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.object_store.open_store import local_path
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.stage import Stage
from kubetrain_trainer.output.training_output import TrainingOutput

WORKSPACE_VARIABLE = "KUBETRAIN_WORKSPACE"
"""Steps get the workspace from the environment, because kfp.local rewrites "python3" in arguments, also in paths."""
MIRROR_VARIABLE = "KUBETRAIN_S3_MIRROR"
"""Folder in which the objects of the embedded S3 server are after the run; unset: the run has no such server."""


class Site(Protocol):
    def sync(self, parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> dict[str, Any]:
        """Import a task of your own, then sync the dataset. Return a report, which has the fields of a DatasetPlace."""
        ...

    def image_id(self, parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> str:
        """Return the ID of the image that training pods would run now; empty if it is unknown."""
        ...

    def data_dir(self, dataset: DatasetPlace) -> Path:
        """Return the path of the dataset version in training pods."""
        ...

    def output_dir(self, run_id: str) -> Path:
        """Return the path of a run's output in pods."""
        ...

    def output(self, run: RunParameters) -> TrainingOutput:
        """Return the output of a run, as this step reads it."""
        ...

    def mounts(self, dataset: DatasetPlace, output_claim: str) -> tuple[ClaimMount, ...]:
        """Return the mounts of the dataset version and the output in training pods."""
        ...

    def fetch_latest(self, source: Mapping[str, Any]) -> Path | None:
        """Return the folder of the latest published model in an evaluation's pod; None: the gate does not compare."""
        ...

    def shard_cache(self, dataset: DatasetPlace) -> AbstractContextManager[Path | None]:
        """Return the folder in which pods find the shards of the dataset; None: the version has them."""
        ...

    def backend(self) -> AbstractContextManager[JobBackend]: ...

    def stage(self, name: str, run_id: str) -> AbstractContextManager[Stage]: ...


def this_site(environment: Mapping[str, str] = os.environ) -> Site:
    if workspace := environment.get(WORKSPACE_VARIABLE):
        from kubetrain_components.sites.local import LocalSite

        return LocalSite(Path(workspace))
    from kubetrain_components.sites.cluster import ClusterSite

    return ClusterSite()


def lasting_uri(uri: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URI of a published version after the run."""
    return local_path(uri, Path(mirror)).as_uri() if (mirror := environment.get(MIRROR_VARIABLE)) else uri
