"""The images of the components and trainers: those of the team's repository, or kubetrain's own."""

from kubetrain_components import IMAGE_NAME
from kubetrain_pipelines.project import project
from kubetrain_trainer.frameworks import PACKAGES

# Constants, because KFP builds a pipeline while its module is imported.
_IMAGES = project().images
PULL_SECRETS = project().image_pull_secrets
"""The pull secrets of steps; the pods of jobs have image_pull_secrets in their placement."""

COMPONENTS = _IMAGES.get("components", f"{IMAGE_NAME}:0.1.0")
TRAINERS = {framework: _IMAGES.get(framework, f"kubetrain/trainer-{framework}:0.1.0") for framework in PACKAGES}
