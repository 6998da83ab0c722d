"""`kubetrain render`: all that a run of a pipeline makes on a cluster, as manifests."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.images import COMPONENTS, TRAINERS
from kubetrain_pipelines.params_file import single_settings
from kubetrain_pipelines.pipeline_parameters import framework_of
from kubetrain_pipelines.settings import parameters_of, parse_settings

CLUSTER_ONLY = ("s3_secret", "skip_unchanged")
"""Parameters that a run on one machine has not."""


def render_and_show(pipeline: str, run_id: str, pairs: Sequence[str], params: Path | None) -> None:
    parameters = planned_run(pipeline, run_id, single_settings(params, pairs))
    for warning in parameters.placement.warnings():
        print(f"# warning: {warning}")
    print("# The digest of zeros stands for that of the dataset, which the transfer learns.")
    print(yaml.safe_dump_all(planned_manifests(parameters), sort_keys=False), end="")


def planned_run(pipeline: str, run_id: str, pairs: Sequence[str]) -> RunParameters:
    """
    Raises:
        InvalidSetting: where a parameter or setting cannot be used.
    """
    framework = framework_of(pipeline)
    settings = parse_settings(framework, pairs, [*parameters_of(framework), *CLUSTER_ONLY], [Placement, Storage])
    return RunParameters(
        framework=framework,
        pipeline=pipeline,
        run_id=run_id,
        components_image=COMPONENTS,
        train_config=settings.config,
        placement=settings.placement.with_default_image(TRAINERS[framework]),
        storage=settings.storage,
        **{"dataset_uri": "", "model_uri": "", "workers": 2, **settings.parameters},
    )
