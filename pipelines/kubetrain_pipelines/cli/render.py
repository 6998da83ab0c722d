"""`kubetrain render`: the manifests of everything that a run creates on a cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from kubetrain_components.run.admission import admit_run
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.images import COMPONENTS, TRAINERS
from kubetrain_pipelines.parse_parameters import parse_parameters
from kubetrain_pipelines.pipeline_parameters import framework_of, parameters_of, with_defaults


def render_and_show(pipeline: str, run_id: str, pairs: Sequence[str], params: Path | None) -> None:
    parameters = planned_run(pipeline, run_id, pairs, params)
    for warning in parameters.placement.warnings():
        print(f"# warning: {warning}")
    print("# Zeros stand for the digest of the dataset, which is known after the transfer.")
    print(yaml.safe_dump_all(planned_manifests(parameters), sort_keys=False), end="")


def planned_run(
    pipeline: str,
    run_id: str,
    pairs: Sequence[str],
    file: Path | None = None,
    defaults: Mapping[str, str] | None = None,
) -> RunParameters:
    """Return the parameters of a run, as its first step would admit them.

    Args:
        defaults: Defaults that replace those of the pipeline.

    Raises:
        InvalidSetting: if a parameter or setting cannot be used.
    """
    framework = framework_of(pipeline)
    declared = with_defaults(parameters_of(pipeline), defaults or {})
    values = {each.name: each.default for each in declared} | parse_parameters(declared, pairs, file)
    return admit_run(
        framework=framework,
        pipeline=pipeline,
        run_id=run_id,
        components_image=COMPONENTS,
        trainer_image=TRAINERS[framework],
        **values,
    )
