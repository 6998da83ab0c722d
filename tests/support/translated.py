"""Hand-written manifests and their translations."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kubetrain_components.jobs.pod_patch import MAIN, named
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.read_manifests import read_manifests
from kubetrain_pipelines.translate.translation import Translation, translate

HAND_WRITTEN = Path(__file__).parents[1] / "unit" / "hand_written"
ALIKE = {
    "metadata.annotations.sidecar.istio.io/inject": "set for each pod",
    "spec.containers[main].volumeMounts[dshm].mountPath": "/dev/shm has another volume name",
    "spec.volumes[dshm].emptyDir.medium": "/dev/shm has another volume name",
    "spec.volumes[dshm].emptyDir.sizeLimit": "/dev/shm has another volume name",
    "spec.containers[main].securityContext.capabilities.add": "as below, with root, for which the capability counts",
}
"""Fields of pods that kubetrain writes otherwise, with the same effect."""
PROGRAM = re.compile(r"spec\.containers\[main\]\.(command|args|workingDir)")
"""Fields of the program, which kubetrain starts in its own way."""

Manifest = dict[str, Any]


def text_of(name: str) -> str:
    return (HAND_WRITTEN / f"{name}.yaml").read_text()


def translated(text: str) -> Translation:
    return translate(read_manifests([("job.yaml", text)]))


def changed(name: str, *replacements: tuple[str, str]) -> Translation:
    text = text_of(name)
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return translated(text)


def settings_of(translation: Translation) -> dict[str, Any]:
    return {f"{group}.{name}": value for group, named in translation.request.items() for name, value in named.items()}


def unmapped(translation: Translation) -> dict[str, str]:
    return {each.path: each.value for each in translation.unmapped}


def job_in(name: str) -> Manifest:
    return next(each for each in yaml.safe_load_all(text_of(name)) if each["kind"].endswith("Job"))


def leaves_of(template: Manifest, main: str = "") -> dict[str, str]:
    """The fields of a pod by path, with quantities as strings and one name for the container that trains."""
    main = main or template["spec"]["containers"][0]["name"]
    leaves = Fields(template).leaves()
    return {path.replace(f"containers[{main}]", "containers[main]"): str(value) for path, value in leaves.items()}


def main_in(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the main container of the patch of the pods."""
    return named(settings["pods.pod"]["spec"]["containers"], MAIN)


def others_in(settings: Mapping[str, Any]) -> list[Any]:
    return [container for container in settings["pods.pod"]["spec"]["containers"] if container["name"] != MAIN]
