"""collect_checkpoint as a KFP component."""

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def collect_checkpoint(run_id: str, last_checkpoint: str, reused: dict, model: dsl.Output[dsl.Model]) -> str:
    """Choose the checkpoint that becomes the model and verify every byte of it.

    Args:
        run_id: Id of the run.
        last_checkpoint: The checkpoint that the training ended with.
        reused: The published model to use instead; empty where there was a training.
        model: The exported weights with their manifest.

    Returns:
        The checkpoint that was chosen.
    """
    from pathlib import Path

    from kubetrain_components.collect_checkpoint.collect import collect_checkpoint
    from kubetrain_components.run.site import this_site

    if reused:
        print(f"{reused['uri']} is reused")
        model.metadata.update(reused)
        return ""
    site = this_site()
    with site.stage("collect_checkpoint", run_id) as stage:
        stage.result = collect_checkpoint(site.output(run_id), Path(model.path))
        print(f"{stage.result['checkpoint']} becomes the model; the training ended with {last_checkpoint}")
    model.metadata.update(stage.result)
    return stage.result["checkpoint"]
