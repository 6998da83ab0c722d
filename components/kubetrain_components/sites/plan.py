"""Everything that a run will create on a cluster, checked by its first step and printed by `kubetrain render`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kubetrain_components import DATA_PATH, LATEST_PATH, OUTPUT_PATH
from kubetrain_components.evaluate_model.evaluate import EvaluationRequest, evaluation_job
from kubetrain_components.expose_dataset.expose import claim_name, version_path
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.admission import check_pods_can_reach
from kubetrain_components.run.check_imports import import_jobs
from kubetrain_components.run.combined_settings import place_evaluation
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.reuse import image_job, image_job_is_needed
from kubetrain_components.run.transfer_container import cache_in_pods, latest_source, place_latest, stored_shards
from kubetrain_components.sync_dataset.cluster_sync import cluster_transfer_job, wanted_claims


def planned_manifests(parameters: RunParameters) -> list[Manifest]:
    """Return the PVCs and jobs in order of creation, with a digest of zeros: only the transfer knows the real one.

    For launcher auto, the training is that of the training operator: only a cluster knows the real one.

    Raises:
        InvalidSetting: if the cluster would reject a manifest, or not run it as intended.
    """
    check_pods_can_reach(parameters)
    claims = [wanted.manifest() for wanted in wanted_claims(parameters)]
    return [*_manifests(import_jobs(parameters)), *claims, *_manifests(_jobs(parameters))]


def _manifests(jobs: Sequence[Job]) -> Iterator[Manifest]:
    return (manifest for job in jobs for manifest in manifests_of(job))


def _jobs(parameters: RunParameters) -> list[Job]:
    transfer = cluster_transfer_job(parameters)
    if not parameters.framework:
        return [transfer]
    if not parameters.dataset_uri:
        dataset = DatasetPlace(digest="")
        return [_training(parameters, dataset).to_job(), *_evaluation(parameters, dataset)]
    wanted, folder = parameters.storage.exposure_of(parameters.dataset_uri), parameters.data_in_place
    dataset = DatasetPlace(
        digest=wanted.digest,
        claim=folder.claim if folder else claim_name(parameters.storage.staging_claim, wanted.source, wanted.digest),
        sub_path=folder.path if folder else f"{version_path(wanted.digest)}/data",
        shards=stored_shards(parameters),
    )
    image = [image_job(parameters)] if image_job_is_needed(parameters) else []
    return [transfer, *image, _training(parameters, dataset).to_job(), *_evaluation(parameters, dataset)]


def _training(parameters: RunParameters, dataset: DatasetPlace) -> TrainingJob:
    return TrainingJob.of(
        parameters,
        data_dir=dataset.folder(Path(DATA_PATH)),
        output_dir=Path(OUTPUT_PATH, parameters.run_id),
        dataset_digest=dataset.digest,
        shard_cache=cache_in_pods(dataset),
        mounts=dataset.mounts(parameters.storage.mounted_output),
    )


def _evaluation(parameters: RunParameters, dataset: DatasetPlace) -> list[Job]:
    source = latest_source(parameters)
    placement = place_evaluation(parameters.placement, parameters.evaluation_placement)
    evaluation = EvaluationRequest(
        framework=parameters.framework,
        entry=parameters.train_config.entry,
        pipeline=parameters.pipeline,
        run_id=parameters.run_id,
        data_dir=dataset.folder(Path(DATA_PATH)),
        output_dir=Path(OUTPUT_PATH, parameters.run_id),
        dataset_digest=dataset.digest,
        manifest_sha256="",
        latest=Path(LATEST_PATH) if source else None,
        shard_cache=cache_in_pods(dataset),
        placement=place_latest(placement, source),
        mounts=dataset.mounts(parameters.storage.mounted_output),
    )
    return [evaluation_job(evaluation)] if evaluation.program else []
