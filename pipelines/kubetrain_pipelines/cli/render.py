"""`kubetrain render`: the manifests of everything that a run creates on a cluster."""

from collections.abc import Sequence
from pathlib import Path

from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest_text import as_yaml
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines import bring_code
from kubetrain_pipelines.images import image_warnings
from kubetrain_pipelines.planned_run import planned_run

NOTE_ON_AUTO = "# launcher auto takes the first that the cluster has: this is what the training operator would get."


def render_and_show(pipeline: str, run_id: str, pairs: Sequence[str], params: Path | None, code: Path | None) -> None:
    notes: list[str] = []  # nothing is printed before an error, for a kubectl that reads the output
    brought = bring_code.pack(code, say=notes.append)
    parameters = planned_run(pipeline, run_id, [*pairs, *bring_code.as_pairs(brought)], params)
    if brought:
        bring_code.check_scripts(brought, parameters.train_config.entry)
    manifests = as_yaml(planned_manifests(parameters))
    image = parameters.placement.image
    unknown = [
        f"{image} must have your '{each}', which only a cluster can tell: `kubetrain doctor` tries it"
        for each in bring_code.needed_in_image(brought, parameters.train_config)
    ]
    for line in (
        *notes,
        *(f"warning: {each}" for each in (*parameters.placement.warnings(), *unknown, *image_warnings(manifests))),
    ):
        comment(line)
    if parameters.launcher == Launcher.AUTO:
        print(NOTE_ON_AUTO)
    print("# Zeros stand for the digest of the dataset, which is known after the transfer, and for random names.")
    print(manifests, end="")


def comment(text: str) -> None:
    for line in text.splitlines():
        print(f"# {line}")
