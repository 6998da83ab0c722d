"""The rendezvous of an elastic job through etcd: your own, or one that is created for the job and deleted with it.

The etcd of a job is a Job with one pod, so that a pod on a lost node is replaced, and a Service, which it owns.
"""

from dataclasses import replace

from kubetrain_components.jobs.annotations import KEPT_ON_ITS_NODE, LABEL_PREFIX, MANAGED_BY
from kubetrain_components.jobs.etcd_settings import ETCD_BACKEND, ETCD_STAGE, PORT, Endpoint
from kubetrain_components.jobs.job import Elastic, Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.pod_template import RESTRICTED, pod_template
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import merge
from kubetrain_components.manifest import Manifest

ETCD_LABEL = LABEL_PREFIX + "etcd"
"""Random label of one creation of a job that has an etcd of its own, and of that etcd."""
ETCD_OF_LABEL = LABEL_PREFIX + "etcd-of"
"""Label of an etcd: the kind of its job."""
DATA = "/etcd"
NAME_LENGTH = 48
"""Length of the name of the job within that of a Service, which its instance makes unique."""
CPU, DISK = "100m", "4Gi"
BASE_MEBIBYTES, POD_MEBIBYTES = 256, 8
"""Memory of etcd, and what each pod adds: every second each writes the state of all, and etcd keeps the last 6,000."""
SNAPSHOT_COUNT = 1000
"""Writes between two snapshots. With the default of 100,000, etcd would keep as many in memory and exceed its limit."""
RESTARTS = 2**31 - 1


def has_own_etcd(job: Job) -> bool:
    return job.meets_in_etcd and not job.placement.rdzv_endpoint


def etcd_label(job: Job, instance: str) -> dict[str, str]:
    return {ETCD_LABEL: instance} if has_own_etcd(job) and instance else {}


def etcd_name(name: str, instance: str) -> str:
    return f"{name[:NAME_LENGTH]}-{instance}-etcd"


def rendezvous_of(job: Job, elastic: Elastic, lead: tuple[str, int], instance: str) -> tuple[Elastic, tuple[str, int]]:
    """Return the rendezvous with its host and port, by default those of the lead pod.

    The ID is that of one creation of the job, because etcd keeps a rendezvous for two hours after its last change.
    """
    if not job.meets_in_etcd:
        return elastic, lead
    text = job.placement.rdzv_endpoint
    name = job.identity.name
    endpoint = Endpoint.parse(text) if text else Endpoint("http", etcd_name(name, instance), PORT)
    conf = {**elastic.rdzv_conf, "protocol": endpoint.protocol}
    rendezvous = replace(elastic, rdzv_backend=ETCD_BACKEND, rdzv_id=f"{name}-{instance}", rdzv_conf=conf)
    return rendezvous, (endpoint.host, endpoint.port)


def etcd_manifest(job: Job, instance: str) -> Manifest:
    """Return the Job of an etcd, whose data stays while its container restarts."""
    server = _server(job, instance)
    spec = {"restartPolicy": "OnFailure", "volumes": [{"name": "data", "emptyDir": {"sizeLimit": DISK}}]}
    template = pod_template(server, server.replicas[0], spec=spec)
    (container,) = template["spec"]["containers"]
    del container["env"]  # the number of threads of a training
    container |= {
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
        "securityContext": {**RESTRICTED, "readOnlyRootFilesystem": True},
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 2},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": etcd_name(job.identity.name, instance),
            "labels": {**MANAGED_BY, **server.labels, **etcd_label(job, instance), ETCD_OF_LABEL: job.kind.value},
            "annotations": server.identity.annotations(),
        },
        "spec": {"backoffLimit": RESTARTS, "template": template},
    }


def etcd_service(etcd: Manifest) -> Manifest:
    """Return the Service of an etcd, which owns it if it exists already."""
    metadata = etcd["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata.get("uid", "")}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": metadata["name"],
            "labels": metadata["labels"],
            **({"ownerReferences": [owner]} if owner["uid"] else {}),
        },
        "spec": {
            "selector": {JobKind.BATCH_JOB.traits.job_name_label: metadata["name"]},
            "ports": [{"name": "http", "port": PORT}],
        },
    }


def _server(job: Job, instance: str) -> Job:
    """Return the server as a job of one pod, which takes from the placement what any pod of this user needs."""
    identity, own = job.identity, job.placement
    return Job(
        identity=JobIdentity(pipeline=identity.pipeline, stage=ETCD_STAGE, run_id=identity.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Etcd", count=1, command=_command(etcd_name(identity.name, instance))),),
        placement=Placement(
            image=own.etcd_image,
            cpu=CPU,
            memory=f"{BASE_MEBIBYTES + POD_MEBIBYTES * job.max_pods}Mi",
            shm_size="",
            user=own.user,
            pod=merge({"metadata": {"annotations": KEPT_ON_ITS_NODE}}, own.any_pod(CPU, "priorityClassName")),
        ),
    )


def _command(host: str) -> tuple[str, ...]:
    return (
        "etcd",
        "--enable-v2",  # torchrun speaks no other API
        f"--snapshot-count={SNAPSHOT_COUNT}",
        f"--data-dir={DATA}/data",
        f"--listen-client-urls=http://0.0.0.0:{PORT}",
        f"--advertise-client-urls=http://{host}:{PORT}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
    )
