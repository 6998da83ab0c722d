"""The KFP component promote_model."""

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def promote_model(
    dataset_uri: str,
    model_uri: str,
    s3_endpoint: str,
    train_config: dict,
    image: str,
    image_id: str,
    reused: dict,
    conditions_met: list,
    refusal: str,
    run_id: str,
) -> str:
    """Publish the model, unless the evaluation has refused it.

    Args:
        dataset_uri: Dataset that the model was trained on, which is published with it.
        model_uri: Destination of published models: s3://BUCKET/PREFIX.
        s3_endpoint: URL of the S3 server; empty: AWS.
        train_config: Training settings.
        image: Image of the training pods.
        image_id: ID of this image in the status of a training pod; may be empty.
        reused: Published model if training was skipped; else empty.
        conditions_met: Sentences of the gate's conditions that are met.
        refusal: Why the model must not be published; empty: it may.
        run_id: ID of the run.

    Returns:
        URI of the published version.
    """
    from dataclasses import asdict

    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.promote_model.description import Origin
    from kubetrain_components.promote_model.promote import promote_model
    from kubetrain_components.run.published_model import read_commit
    from kubetrain_components.run.reuse import ImageVersion
    from kubetrain_components.run.site import this_site
    from kubetrain_trainer.errors import KubetrainError
    from kubetrain_trainer.settings.config import TrainConfig

    site = this_site()
    with site.stage("promote_model", run_id) as stage:
        config = TrainConfig.from_dict(train_config)
        for condition in conditions_met:
            print(f"gate: {condition}", flush=True)
        if refusal:
            raise KubetrainError(refusal)
        if reused:
            print(f"already published as {reused['uri']}")
            return reused["uri"]
        store = open_store(model_uri, s3_endpoint, was_reached=True)  # by the first step
        origin = Origin(
            run_id=run_id,
            dataset_uri=dataset_uri,
            image=ImageVersion(name=image, id=image_id),
            commit=read_commit(store, config.code),
        )
        promotion = promote_model(site.output(run_id), store, origin)
        stage.result = asdict(promotion)
        print(f"published as {promotion.uri}, {promotion.note or 'now the latest'}")
    return stage.result["uri"]
