"""Let pods fetch your own code."""

from dataclasses import replace

from kubetrain_components.jobs.kubernetes.manifests.code_container import CODE_MOUNT
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import transfer_container

PROGRAM = "kubetrain_components.bring_code.fetch"


def with_code(parameters: RunParameters) -> RunParameters:
    """Return the parameters, whose training pods fetch the archive that train_config names, if any."""
    if not (digest := parameters.train_config.code):
        return parameters
    code = transfer_container(parameters, parameters.model_uri, CODE_MOUNT, PROGRAM, "--digest", digest)
    return replace(parameters, placement=replace(parameters.placement, code_container=code))
