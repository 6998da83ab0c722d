"""The KFP component promote_model."""

from typing import NamedTuple

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def promote_model(
    run: dict,
    image: str,
    image_id: str,
    reused: dict,
    conditions_met: list,
    refusal: str,
    run_id: str,
    publication: dsl.Output[dsl.Markdown],
) -> NamedTuple("Published", uri=str):
    """Publish the model, unless the evaluation has refused it.

    Args:
        run: Settings of the run, by group.
        image: Image of the training pods.
        image_id: ID of this image in the status of a training pod; may be empty.
        reused: Published model if training was skipped; else empty.
        conditions_met: Sentences of the gate's conditions that are met.
        refusal: Why the model must not be published; empty: it may.
        run_id: ID of the run.
        publication: Summary of what became of the model: outcome, metrics, dataset, how to load it and to go back.

    Returns:
        URI of the published version.
    """
    from dataclasses import asdict, replace
    from pathlib import Path

    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.promote_model.description import Origin
    from kubetrain_components.promote_model.promote import already_published, promote_model
    from kubetrain_components.promote_model.summary import NOT_PUBLISHED, how_to_load, publication_summary
    from kubetrain_components.run.published_model import read_commit
    from kubetrain_components.run.request import parameters_of
    from kubetrain_components.run.reuse import ImageVersion
    from kubetrain_components.run.site import lasting_uri, this_site
    from kubetrain_trainer.errors import KubetrainError

    site, asked = this_site(), parameters_of(run, run_id=run_id)
    with site.stage("promote_model", run_id) as stage:
        for condition in conditions_met:
            print(f"gate: {condition}", flush=True)
        if refusal:
            raise KubetrainError(refusal)
        if not asked.train_config.publishes:
            print(NOT_PUBLISHED, flush=True)
            Path(publication.path).write_text(NOT_PUBLISHED)
            return ("",)
        if reused:
            promotion, evaluation = already_published(reused), reused
            print(f"already published as {promotion.uri}")
        else:
            store = open_store(asked.model_uri, asked.s3_endpoint, was_reached=True)  # by the first step
            origin = Origin(
                run_id=run_id,
                dataset_uri=asked.dataset_uri,
                image=ImageVersion(name=image, id=image_id),
                commit=read_commit(store, asked.train_config.code),
            )
            output = site.output(asked)
            promotion, evaluation = promote_model(output, store, origin), output.read_evaluation()
            print(f"published as {promotion.uri}, {promotion.note or 'now the latest'}")
        kept = replace(promotion, uri=lasting_uri(promotion.uri))
        load = "" if asked.train_config.entry else how_to_load(kept.uri, asked.s3_endpoint)
        page = publication_summary(kept, conditions_met, evaluation, asked.dataset_uri, load)
        Path(publication.path).write_text(page)
        stage.result = {**asdict(promotion), "publication": publication.path}
    return (promotion.uri,)
