"""Every image reference, in one place; a team's repository may name its own."""

from kubetrain_components import IMAGE_NAME
from kubetrain_pipelines.project import project

# Read when a pipeline is imported, for KFP builds it then.
_OWN = project().images

COMPONENTS = _OWN.get("components", f"{IMAGE_NAME}:0.1.0")
TRAINERS = {
    framework: _OWN.get(framework, f"kubetrain/trainer-{framework}:0.1.0") for framework in ("pytorch", "tensorflow")
}
