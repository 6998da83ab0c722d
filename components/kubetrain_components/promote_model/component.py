"""The KFP component promote_model."""

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def promote_model(
    dataset_uri: str,
    model_uri: str,
    s3_endpoint: str,
    train_config: dict,
    min_accuracy: float,
    gate: str,
    image: str,
    image_id: str,
    reused: dict,
    run_id: str,
) -> str:
    """Publish the model if it is good enough.

    Args:
        dataset_uri: Dataset that the model was trained on, which is published with it.
        model_uri: Destination of published models: s3://BUCKET/PREFIX.
        s3_endpoint: URL of the S3 server; empty: AWS.
        train_config: Training settings.
        min_accuracy: Minimum accuracy on the test split; 0: no minimum.
        gate: Conditions that the model must meet.
        image: Image of the training pods.
        image_id: ID of this image in the status of a training pod; may be empty.
        reused: Published model if training was skipped; else empty.
        run_id: ID of the run.

    Returns:
        URI of the published version.
    """
    from dataclasses import asdict

    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.promote_model.description import Origin
    from kubetrain_components.promote_model.promote import promote_model
    from kubetrain_components.run.gate import Latest, parse_gate
    from kubetrain_components.run.published_model import read_commit
    from kubetrain_components.run.reuse import ImageVersion
    from kubetrain_components.run.site import this_site
    from kubetrain_trainer.settings.config import TrainConfig

    site = this_site()
    with site.stage("promote_model", run_id) as stage:
        config = TrainConfig.from_dict(train_config)
        wanted = parse_gate(gate, min_accuracy, config)
        if reused:  # the model itself is the latest
            wanted.check(reused["metrics"], Latest(version=reused["uri"], metrics=reused["metrics"]))
            print(f"already published as {reused['uri']}")
            return reused["uri"]
        store = open_store(model_uri, s3_endpoint, was_reached=True)  # by the first step
        origin = Origin(
            run_id=run_id,
            dataset_uri=dataset_uri,
            image=ImageVersion(name=image, id=image_id),
            commit=read_commit(store, config.code),
        )
        promotion = promote_model(site.output(run_id), store, wanted, origin)
        stage.result = asdict(promotion)
        print(f"published as {promotion.uri}, {promotion.note or 'now the latest'}")
    return stage.result["uri"]
