"""Let pods fetch your own code: by a container that has the image, settings and rights of the dataset transfer."""

from dataclasses import replace

from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.code_container import CODE_MOUNT
from kubetrain_components.jobs.kubernetes.pod_template import pod_template
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_placement import transfer_placement

RESOURCES = {"cpu": "500m", "memory": "512Mi"}
"""Requests and limits are equal, so that pods of the class Guaranteed stay in it."""


def with_code(parameters: RunParameters) -> RunParameters:
    """Return the parameters, whose training pods fetch the archive that train_config names, if any."""
    if not parameters.train_config.code:
        return parameters
    container = fetcher(parameters)
    mounts = [*container.get("volumeMounts", []), CODE_MOUNT]
    resources = {"requests": RESOURCES, "limits": RESOURCES}
    code = {
        "container": {**container, "name": CODE_MOUNT["name"], "volumeMounts": mounts, "resources": resources},
        "volumes": parameters.storage.transfer.get("volumes", []),
    }
    return replace(parameters, placement=replace(parameters.placement, code_container=code))


def fetcher(parameters: RunParameters) -> Manifest:
    source = ("--uri", parameters.model_uri, "--endpoint", parameters.s3_endpoint)
    archive = ("--digest", parameters.train_config.code, "--to", CODE_MOUNT["mountPath"])
    command = ("python", "-m", "kubetrain_components.bring_code.fetch", *source, *archive)
    replica = Replica(role="Code", count=1, command=command)
    identity = JobIdentity(pipeline=parameters.pipeline, stage="fetch_code", run_id=parameters.run_id)
    placement = transfer_placement(parameters)
    job = Job(identity=identity, kind=JobKind.BATCH_JOB, replicas=(replica,), placement=placement)
    container: Manifest = pod_template(job, replica)["spec"]["containers"][0]
    return container
