"""The local site: this machine, with a workspace folder instead of PVCs."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.expose_dataset.expose import version_path
from kubetrain_components.fetch_model.fetch import fetch_latest
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access
from kubetrain_components.run.check_imports import check_imports
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.events import EventLog
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.stage import Stage, running_stage
from kubetrain_components.serve_shards.serve import own_folder, serving
from kubetrain_components.sync_dataset.sync import sync_dataset, transfer_job
from kubetrain_trainer.output.training_output import TrainingOutput


@dataclass(frozen=True)
class LocalSite:
    workspace: Path

    @property
    def staging(self) -> Path:
        return self.workspace / "staging"

    @property
    def outputs(self) -> Path:
        return self.workspace / "output"

    def sync(self, parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> dict[str, Any]:
        check_imports(parameters, backend, on_line)
        return sync_dataset(parameters, transfer_job(parameters, self.staging, self.outputs), backend, on_line)

    def image_id(self, parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> str:
        return ""

    def data_dir(self, dataset: DatasetPlace) -> Path:
        return dataset.folder(self.staging / version_path(dataset.digest) / "data")

    def output_dir(self, run_id: str) -> Path:
        return self.outputs / run_id

    def output(self, run: RunParameters) -> TrainingOutput:
        return TrainingOutput(self.output_dir(run.run_id))

    def mounts(self, dataset: DatasetPlace, output_claim: str) -> tuple[ClaimMount, ...]:
        return ()

    def fetch_latest(self, source: Mapping[str, Any]) -> Path | None:
        if not source:
            return None
        folder = self.workspace / "latest-model"
        fetch_latest(open_store(source["uri"], source["endpoint"], was_reached=True), folder)
        return folder

    @contextmanager
    def shard_cache(self, dataset: DatasetPlace) -> Iterator[Path | None]:
        """Serve shards from this process, to all pods from one folder."""
        if not (stored := dataset.shards):
            yield None
            return
        store = open_store(stored["uri"], stored["endpoint"], Access(stored["access"]), was_reached=True)
        with own_folder(self.workspace) as folder, serving(store, folder, int(stored["cache_bytes"])):
            yield folder

    def backend(self) -> AbstractContextManager[JobBackend]:
        return LocalBackend(self.workspace / "jobs")

    def stage(self, name: str, run_id: str) -> AbstractContextManager[Stage]:
        return running_stage(name, run_id, EventLog(self.workspace / "events.jsonl"))
