"""`kubetrain render`: all that a run of a pipeline makes on a cluster, as manifests."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.sync_request import SyncRequest
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_components.sync_dataset.sync import S3_SECRET, transfer_placement
from kubetrain_pipelines.images import COMPONENTS, TRAINERS
from kubetrain_pipelines.params_file import single_settings
from kubetrain_pipelines.pipeline_parameters import framework_of
from kubetrain_pipelines.settings import parameters_of, parse_settings

CLUSTER_ONLY = ("s3_secret", "skip_unchanged")
"""Parameters that a run on one machine has not."""


def render_and_show(pipeline: str, run_id: str, pairs: Sequence[str], params: Path | None) -> None:
    parameters, request = planned_run(pipeline, run_id, single_settings(params, pairs))
    for warning in parameters.placement.warnings():
        print(f"# warning: {warning}")
    print("# The digest of zeros stands for that of the dataset, which the transfer learns.")
    print(yaml.safe_dump_all(planned_manifests(parameters, request), sort_keys=False), end="")


def planned_run(pipeline: str, run_id: str, pairs: Sequence[str]) -> tuple[RunParameters, SyncRequest]:
    """
    Raises:
        InvalidSetting: where a parameter or setting cannot be used.
    """
    framework = framework_of(pipeline)
    settings = parse_settings(framework, pairs, [*parameters_of(framework), *CLUSTER_ONLY], [Placement, Storage])
    given = settings.parameters
    endpoint, secret = given.pop("s3_endpoint", ""), given.pop("s3_secret", S3_SECRET)
    given.pop("skip_unchanged", None)  # what is planned is a run that is not skipped
    parameters = RunParameters(
        framework=framework,
        train_config=settings.config.to_dict(),
        placement=settings.placement.with_default_image(TRAINERS[framework]),
        storage=settings.storage,
        **{"dataset_uri": "", "model_uri": "", "workers": 2, **given},
    )
    parameters.check()
    request = SyncRequest(
        source=parameters.dataset_uri,
        endpoint_url=endpoint,
        access=parameters.dataset_access,
        pipeline=pipeline,
        run_id=run_id,
        placement=transfer_placement(parameters.placement, COMPONENTS, secret, parameters.storage.transfer),
    )
    return parameters, request
