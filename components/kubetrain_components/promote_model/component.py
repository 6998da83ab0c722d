"""The KFP component promote_model."""

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def promote_model(
    model_uri: str, s3_endpoint: str, min_accuracy: float, image: str, image_id: str, reused: dict, run_id: str
) -> str:
    """Publish the model if it is good enough.

    Args:
        model_uri: Destination of published models: s3://BUCKET/PREFIX.
        s3_endpoint: URL of the S3 server; empty: AWS.
        min_accuracy: Minimum accuracy on the test split; 0: publish any model.
        image: Image of the training pods.
        image_id: ID of this image in the status of a training pod; may be empty.
        reused: Published model if training was skipped; else empty.
        run_id: ID of the run.

    Returns:
        URI of the published version.
    """
    from dataclasses import asdict

    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.promote_model.promote import check_gate, promote_model
    from kubetrain_components.run.reuse import ImageVersion
    from kubetrain_components.run.site import this_site

    site = this_site()
    with site.stage("promote_model", run_id) as stage:
        if reused:
            check_gate(reused["metrics"], min_accuracy)
            print(f"already published as {reused['uri']}")
            return reused["uri"]
        store = open_store(model_uri, s3_endpoint, was_reached=True)  # by the first step
        version = ImageVersion(name=image, id=image_id)
        promotion = promote_model(site.output(run_id), store, min_accuracy, run_id, version)
        stage.result = asdict(promotion)
        print(f"published as {promotion.uri}, {promotion.note or 'now the latest'}")
    return stage.result["uri"]
