"""The KFP component collect_checkpoint."""

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def collect_checkpoint(
    run: dict, run_id: str, last_checkpoint: str, reused: dict, model: dsl.Output[dsl.Model]
) -> None:
    """Choose the checkpoint that becomes the model, and verify its hashes.

    Args:
        run: Settings of the run, by group.
        run_id: ID of the run.
        last_checkpoint: Last checkpoint of the training.
        reused: Published model if training was skipped; else empty.
        model: Exported weights and their manifest.
    """
    from pathlib import Path

    from kubetrain_components.collect_checkpoint.collect import collect_checkpoint
    from kubetrain_components.run.request import parameters_of
    from kubetrain_components.run.site import this_site

    if reused:
        print(f"reusing {reused['uri']}")
        model.metadata.update(reused)
        return
    site = this_site()
    with site.stage("collect_checkpoint", run_id) as stage:
        stage.result = collect_checkpoint(site.output(parameters_of(run, run_id=run_id)), Path(model.path))
        becomes = "becomes the model" if stage.result["bytes"] else "ends a training that publishes no model"
        print(f"{stage.result['checkpoint']} {becomes}; the last checkpoint is {last_checkpoint}")
    model.metadata.update(stage.result)
