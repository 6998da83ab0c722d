"""The team's own step. KFP ships only the body of the function, so its imports are inside it."""

from kfp import dsl

from kubetrain_pipelines.definitions.images import COMPONENTS


@dsl.component(base_image=COMPONENTS, install_kfp_package=False)
def write_model_card(model: dsl.Input[dsl.Model], uri: str, card: dsl.Output[dsl.Markdown]) -> None:
    """Describe the published model.

    Args:
        model: The collected model.
        uri: URI of the published version.
        card: The description, as Markdown.
    """
    from pathlib import Path

    facts = "".join(f"- {name}: {value}\n" for name, value in sorted(model.metadata.items()))
    Path(card.path).write_text(f"# {uri}\n\n{facts}")
