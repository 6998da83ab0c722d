"""Containers that fetch from S3 for other pods, with the image, settings and rights of the dataset transfer."""

from typing import Any

from kubetrain_components.jobs.job import OWN_PROGRAM, Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_placement import transfer_placement

RESOURCES = {"cpu": "500m", "memory": "512Mi"}
"""Requests and limits are equal, so that pods of the class Guaranteed stay in it."""


def transfer_container(
    parameters: RunParameters, uri: str, mount: Manifest, program: str, *arguments: str
) -> dict[str, Any]:
    """Return an init container that runs this program, and the volumes that it mounts.

    Args:
        uri: The store that the program reads.
        mount: Where the program puts what it fetches; its name is the container's, too.
    """
    source = ("--uri", uri, "--endpoint", parameters.s3_endpoint)
    command = ("python", "-m", program, *source, *arguments, "--to", mount["mountPath"])
    container = _container(parameters, command)
    resources = {"requests": RESOURCES, "limits": RESOURCES}
    own = {"name": mount["name"], "volumeMounts": [*container.get("volumeMounts", []), mount], "resources": resources}
    return {"container": {**container, **own}, "volumes": parameters.storage.transfer.get("volumes", [])}


def _container(parameters: RunParameters, command: tuple[str, ...]) -> Manifest:
    replica = Replica(role="Fetch", count=1, command=command, env=OWN_PROGRAM)
    identity = JobIdentity(pipeline=parameters.pipeline, stage="fetch", run_id=parameters.run_id)
    placement = transfer_placement(parameters)
    job = Job(identity=identity, kind=JobKind.BATCH_JOB, replicas=(replica,), placement=placement)
    container: Manifest = pod_template(job, replica)["spec"]["containers"][0]
    return container
