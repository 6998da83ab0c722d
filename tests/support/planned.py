"""Runs that are asked for as on a command line, as their first step would admit them."""

from collections.abc import Iterator
from typing import Any

from kubetrain_components.run.admission import admit_run
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.request import Request
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.planned_run import planned_run

URIS = ("data.uri=s3://bucket/digits", "model.uri=s3://bucket/models")


def planned(*pairs: str, source: str = "train-pytorch") -> RunParameters:
    return planned_run(AskedRun(source=source, pairs=(*URIS, *pairs)).read(), "doctor")


def admitted_manifests(request: Request, framework: str) -> list[dict[str, Any]]:
    """Return what a pipeline's first step would have created for this request."""
    images = {"components_image": "components:1", "trainer_image": "trainer:1"}
    of_run = {"pipeline": f"train-{framework}", "run_id": "5f2c", "framework": framework}
    return planned_manifests(admit_run(request, **of_run, **images))


def specs(manifest: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the specs of the pods in a manifest, with their places."""
    if isinstance(manifest, dict) and "containers" in manifest:
        yield path, manifest
    elif isinstance(manifest, dict | list):
        parts = manifest.items() if isinstance(manifest, dict) else enumerate(manifest)
        for name, part in parts:
            yield from specs(part, f"{path}.{name}")
