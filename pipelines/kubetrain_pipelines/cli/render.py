"""`kubetrain render`: the manifests of everything that a run creates on a cluster."""

from collections.abc import Iterator

from kubetrain_components.bring_code.pack import PackedCode
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest_text import as_yaml
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.request import Request
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.definitions.images import image_warnings
from kubetrain_pipelines.requests import bring_code
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.planned_run import planned_run
from kubetrain_pipelines.requests.secret_warnings import secret_warnings

NOTE_ON_AUTO = "# launcher auto takes the first that the cluster has: this is what the training operator would get."


def render_and_show(asked: AskedRun, run_id: str) -> None:
    notes: list[str] = []  # nothing is printed before an error, for a kubectl that reads the output
    brought = bring_code.pack(asked, say=notes.append)
    request = bring_code.with_code(asked.read(), brought)
    parameters = planned_run(request, run_id)
    of_code = bring_code.check_scripts(brought, parameters.train_config)
    manifests = as_yaml(planned_manifests(parameters))
    for line in (
        *notes,
        *(f"warning: {warning}" for warning in (*of_code, *_warnings(request.request, parameters, brought, manifests))),
    ):
        comment(line)
    if parameters.launcher == Launcher.AUTO:
        print(NOTE_ON_AUTO)
    print("# Zeros stand for the digest of the dataset, which is known after the transfer, and for random names.")
    print(manifests, end="")


def _warnings(request: Request, parameters: RunParameters, brought: PackedCode | None, manifests: str) -> Iterator[str]:
    placement, config = parameters.placement, parameters.train_config
    yield from secret_warnings(request)
    yield from placement.warnings()
    for name in bring_code.needed_in_image(brought, config):
        yield f"{placement.image} must have your '{name}', which only a cluster can tell: `kubetrain doctor` tries it"
    yield from image_warnings(manifests)


def comment(text: str) -> None:
    for line in text.splitlines():
        print(f"# {line}")
