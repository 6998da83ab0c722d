"""The KFP component sync_dataset."""

from typing import NamedTuple

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def sync_dataset(
    pipeline: str,
    run_id: str,
    components_image: str,
    dataset: dsl.Output[dsl.Markdown],
    data_uri: str = "",
    framework: str = "",
    trainer_image: str = "",
    model_uri: str = "",
    data_access: str = "credentials",
    data_endpoint: str = "",
    data_secret: str = "kubetrain-s3",
    data_format: str = "image_folder",
    data_more: dict = {},
    model_gate: str = "",
    model_name: str = "digits_cnn",
    model_start: str = "",
    model_more: dict = {},
    pods_workers: int = 2,
    pods_min_workers: int = 0,
    pods_max_workers: int = 0,
    pods_processes: int = 0,
    pods_launcher: str = "auto",
    pods_image: str = "",
    pods_cpu: str = "1",
    pods_memory: str = "4Gi",
    pods_gpus: int = 0,
    pods_shm_size: str = "1Gi",
    pods_more: dict = {},
    storage_staging_claim: str = "kubetrain-staging",
    storage_staging_size: str = "100Gi",
    storage_output_claim: str = "kubetrain-output",
    storage_class: str = "",
    storage_exposure: str = "auto",
    storage_more: dict = {},
    train_skip_unchanged: bool = False,
    train_entry: str = "",
    train_recipe: str = "none",
    train_epochs: int = 15,
    train_batch_size: int = 32,
    train_seed: int = 0,
    train_optimizer: str = "sgd",
    train_learning_rate: float = 0.1,
    train_precision: str = "auto",
    train_more: dict = {},
) -> NamedTuple("Synced", dataset_place=dict, run=dict, reused=dict, latest=dict):
    """Check every setting of the run, and sync the dataset to a version on the staging PVC.

    The other parameters are the settings of the run, see docs/settings.md.

    Args:
        pipeline: Name of the pipeline.
        run_id: ID of the run.
        components_image: Image of the transfer pod.
        dataset: Summary of the dataset version: its source, size and verification, and how pods read it.
        data_uri: Dataset: s3://BUCKET/PREFIX; empty: none, for a script that brings its own data.
        framework: pytorch or tensorflow; empty: the run does not train.
        trainer_image: Image of the training pods, unless pods_image sets another.

    Returns:
        The place of the dataset version, the settings of the run, the model to reuse, if any, and where the evaluation
        finds the latest model, if the gate compares with it.
    """
    form = dict(locals())

    from functools import partial
    from pathlib import Path

    from kubetrain_components.run.admission import admit_run, check_model_store
    from kubetrain_components.run.dataset_place import DatasetPlace
    from kubetrain_components.run.request import request_of, request_of_form
    from kubetrain_components.run.reuse import model_to_reuse
    from kubetrain_components.run.site import this_site
    from kubetrain_components.run.transfer_container import latest_source, stored_shards
    from kubetrain_components.sync_dataset.summary import dataset_summary
    from kubetrain_components.sync_dataset.weights import with_brought_weights

    site = this_site()
    with site.stage("sync_dataset", run_id) as stage, site.backend() as backend:
        parameters = admit_run(
            request_of_form(form),
            framework=framework,
            pipeline=pipeline,
            run_id=run_id,
            components_image=components_image,
            trainer_image=trainer_image,
        )
        check_model_store(parameters)
        stage.result = site.sync(parameters, backend, stage.on_line)
        parameters = with_brought_weights(parameters, stage.result.get("weights", ""))
        image_id = partial(site.image_id, parameters, backend, stage.on_line)
        reused = model_to_reuse(parameters, stage.result["digest"], image_id)
    place = DatasetPlace.of_report(stage.result, stored_shards(parameters))
    Path(dataset.path).write_text(dataset_summary(stage.result, place, site.data_dir(place)))
    return place.to_dict(), request_of(parameters), reused, latest_source(parameters)
