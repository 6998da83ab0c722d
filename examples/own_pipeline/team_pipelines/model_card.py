"""A step of the team's own: KFP ships the function's body alone, so that what it needs is imported there."""

from kfp import dsl

from kubetrain_pipelines.images import COMPONENTS


@dsl.component(base_image=COMPONENTS, install_kfp_package=False)
def write_model_card(model: dsl.Input[dsl.Model], uri: str, card: dsl.Output[dsl.Markdown]) -> None:
    """Describe the published model.

    Args:
        model: The model that was collected.
        uri: Where it was published.
        card: What is known of it.
    """
    from pathlib import Path

    facts = "".join(f"- {name}: {value}\n" for name, value in sorted(model.metadata.items()))
    Path(card.path).write_text(f"# {uri}\n\n{facts}")
