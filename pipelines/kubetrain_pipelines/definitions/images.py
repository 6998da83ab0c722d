"""The images of the components and trainers: those of the team's repository, or names that stand for them."""

import re
from collections.abc import Mapping
from typing import Any

from kubetrain_components import IMAGE_NAME, REGISTRY
from kubetrain_pipelines.definitions.project import project
from kubetrain_trainer.frameworks import PACKAGES

# Constants, because KFP builds a pipeline while its module is imported.
_IMAGES = project().images
PULL_SECRETS = project().image_pull_secrets
"""The pull secrets of steps; the pods of jobs have those of `pod` in their placement."""

COMPONENTS = _IMAGES.get("components", f"{IMAGE_NAME}:0.1.0")
TRAINERS = {framework: _IMAGES.get(framework, f"{REGISTRY}/trainer-{framework}:0.1.0") for framework in PACKAGES}


def image_warnings(text: str, placement: Mapping[str, Any] | None = None) -> list[str]:
    """Name the default images in a text that no registry has; a placement may replace the trainer's."""
    names = sorted(set(re.findall(rf"{re.escape(REGISTRY)}/[\w.:-]+", text)))
    if (placement or {}).get("image"):
        names = [name for name in names if name.startswith(IMAGE_NAME)]
    if not names:
        return []
    return [
        f"no registry has {', '.join(names)}: build and push the images, and name yours in [tool.kubetrain.images] "
        "of pyproject.toml"
    ]
