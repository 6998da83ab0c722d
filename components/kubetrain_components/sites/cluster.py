"""The cluster site: data is in PVCs, and work runs as Kubernetes jobs."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components import DATA_PATH, LATEST_PATH, OUTPUT_PATH
from kubetrain_components.bring_code.fetch import check_code
from kubetrain_components.expose_dataset.kubernetes_claims import KubernetesClaims
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import ClaimMount
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.keep_output.serve import kept_output
from kubetrain_components.run.check_imports import check_imports
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.events import EventLog
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.reuse import image_job
from kubetrain_components.run.stage import Stage, running_stage
from kubetrain_components.run.stages import TRAIN
from kubetrain_components.run.transfer_container import cache_in_pods
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_components.sync_dataset.cluster_sync import sync_on_cluster
from kubetrain_trainer.output.training_output import TrainingOutput

ONLY_TRAINING_PODS = "; if only the training pods have it, set pods.check_imports=false"
DISCARD_EVENTS = EventLog(Path(os.devnull))


class ClusterSite:
    def sync(self, parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> dict[str, Any]:
        for manifest in planned_manifests(_with_launcher(parameters, backend)):
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            print(f"planned: {kind} {name}", flush=True)
        check_code(parameters)
        check_imports(parameters, backend, on_line, ONLY_TRAINING_PODS)
        return sync_on_cluster(parameters, backend, KubernetesClaims.connect(), on_line)

    def image_id(self, parameters: RunParameters, backend: JobBackend, on_line: OnLine) -> str:
        return run_job(image_job(parameters), backend, on_line).image_id

    def data_dir(self, dataset: DatasetPlace) -> Path:
        return dataset.folder(Path(DATA_PATH))

    def output_dir(self, run_id: str) -> Path:
        return Path(OUTPUT_PATH, run_id)

    def output(self, run: RunParameters) -> TrainingOutput:
        if uri := run.storage.output:
            return kept_output(uri, run.s3_endpoint, run.run_id)
        return TrainingOutput(self.output_dir(run.run_id))

    def mounts(self, dataset: DatasetPlace, output_claim: str) -> tuple[ClaimMount, ...]:
        return dataset.mounts(output_claim)

    def fetch_latest(self, source: Mapping[str, Any]) -> Path | None:
        return Path(LATEST_PATH) if source else None

    def shard_cache(self, dataset: DatasetPlace) -> AbstractContextManager[Path | None]:
        return nullcontext(cache_in_pods(dataset))

    def backend(self) -> AbstractContextManager[JobBackend]:
        return KubernetesBackend.connect()

    def stage(self, name: str, run_id: str) -> AbstractContextManager[Stage]:
        return running_stage(name, run_id, DISCARD_EVENTS)


def _with_launcher(parameters: RunParameters, backend: JobBackend) -> RunParameters:
    """Return the parameters with the launcher that the training would get now, and print which and why."""
    if not parameters.framework:
        return parameters
    identity = JobIdentity(pipeline=parameters.pipeline, stage=TRAIN.name, run_id=parameters.run_id)
    launcher, why = backend.launcher(Launcher(parameters.launcher), parameters.framework, identity)
    print(f"planned: launcher {launcher} ({why})", flush=True)
    return replace(parameters, launcher=launcher)
