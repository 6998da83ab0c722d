"""`kubetrain render`: the manifests of everything that a run creates on a cluster."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.planned_run import planned_run

NOTE_ON_AUTO = "# launcher auto takes the first that the cluster has: this is what the training operator would get."


def render_and_show(pipeline: str, run_id: str, pairs: Sequence[str], params: Path | None) -> None:
    parameters = planned_run(pipeline, run_id, pairs, params)
    # Before anything is printed, so that an error leaves nothing for a kubectl that reads the output.
    manifests = yaml.safe_dump_all(planned_manifests(parameters), sort_keys=False)
    for warning in parameters.placement.warnings():
        print(f"# warning: {warning}")
    if parameters.launcher == Launcher.AUTO:
        print(NOTE_ON_AUTO)
    print("# Zeros stand for the digest of the dataset, which is known after the transfer, and for random names.")
    print(manifests, end="")
