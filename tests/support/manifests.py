"""Jobs whose manifests tests look at: one of each kind, as the stages of a pipeline make them."""

from dataclasses import replace
from typing import Any

from kubetrain_components.jobs.job import ClaimMount, Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.manifest import Manifest

IDENTITY = JobIdentity(pipeline="digits", stage="launch_training", run_id="Run 7", dataset="0123456789abcdef")
MOUNTS = (
    ClaimMount(claim="ds-digits-0123456789abcdef", path="/data", sub_path="versions/0123/data", read_only=True),
    ClaimMount(claim="output", path="/output"),
)
IMAGE = "python:3.11-slim"
PLAIN = Placement(image=IMAGE)


def pytorch(placement: Placement = PLAIN, **changes: Any) -> Job:
    job = Job(
        identity=IDENTITY,
        kind=JobKind.PYTORCH_JOB,
        replicas=(
            Replica(role="Master", count=1, command=("python", "train.py"), env={"PYTHONUNBUFFERED": "1"}),
            Replica(role="Worker", count=2, command=("python", "train.py"), env={"PYTHONUNBUFFERED": "1"}),
        ),
        backoff_limit=10,
        placement=placement,
        mounts=MOUNTS,
    )
    return replace(job, **changes)


def elastic(placement: Placement = PLAIN, **changes: Any) -> Job:
    job = pytorch(
        placement,
        replicas=(Replica(role="Worker", count=3, command=("python", "train.py")),),
        processes_per_replica=8,
        elastic=Elastic(
            min_replicas=2,
            max_replicas=4,
            rdzv_id="run-7",
            rdzv_conf={"last_call_timeout": "3", "keep_alive_interval": "1"},
            max_restarts=6,
            metrics=tuple(placement.scale_metrics),
        ),
    )
    return replace(job, **changes)


def tensorflow(placement: Placement = PLAIN, **changes: Any) -> Job:
    replicas = tuple(
        Replica(role=role, count=count, command=("python", "train.py"), env={"TF_FORCE_GPU_ALLOW_GROWTH": "true"})
        for role, count in {"Chief": 1, "Worker": 2}.items()
    )
    return replace(pytorch(placement, kind=JobKind.TF_JOB, replicas=replicas), **changes)


def batch(placement: Placement = PLAIN, **changes: Any) -> Job:
    identity = replace(IDENTITY, stage="evaluate_model")
    replicas = (Replica(role="Evaluation", count=1, command=("python", "evaluate.py")),)
    job = pytorch(placement, identity=identity, kind=JobKind.BATCH_JOB, replicas=replicas, backoff_limit=3)
    return replace(job, **changes)


def indexed(placement: Placement = PLAIN, **changes: Any) -> Job:
    """A training that Kubernetes runs alone."""
    replicas = (Replica(role="Worker", count=3, command=("python", "train.py"), env={"PYTHONUNBUFFERED": "1"}),)
    job = pytorch(placement, kind=JobKind.BATCH_JOB, framework="pytorch", replicas=replicas)
    return replace(job, **changes)


def indexed_elastic(placement: Placement = PLAIN, **changes: Any) -> Job:
    return elastic(placement, **{"kind": JobKind.BATCH_JOB, "framework": "pytorch"} | changes)


def command(framework: str, launcher: Launcher = Launcher.TRAINING_OPERATOR, **changes: Any) -> Job:
    """Return a job of a framework for which kubetrain has no trainer."""
    usual: dict[str, Any] = {
        "pipeline": IDENTITY.pipeline,
        "run_id": IDENTITY.run_id,
        "placement": PLAIN,
        "mounts": MOUNTS,
    }
    made = {"framework": framework, "launcher": launcher, "command": ("python", "train.py"), **usual, **changes}
    return CommandJob(**made).to_job()


def trainjob(placement: Placement = PLAIN, **changes: Any) -> Job:
    return indexed(placement, **{"kind": JobKind.TRAIN_JOB} | changes)


def ray(placement: Placement = PLAIN, **changes: Any) -> Job:
    submitter = Replica(
        role="Submitter", count=1, command=("python", "-m", "submit"), restart_policy=RestartPolicy.NEVER
    )
    nodes = (Replica(role=role, count=count, command=()) for role, count in {"Head": 1, "Worker": 2}.items())
    job = pytorch(placement, kind=JobKind.RAY_JOB, framework="pytorch", replicas=(submitter, *nodes))
    return replace(job, **changes)


NEAR = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cache"}}}
EVERY_SETTING = Placement(
    image=IMAGE,
    cpu="500m",
    memory="100Mi",
    gpus=8,
    gpu_resource="amd.com/gpu",
    rdma={"rdma/hca": 1},
    shm_size="64Gi",
    network="infiniband",
    nccl={"NCCL_MIN_NCHANNELS": 16, "NCCL_DEBUG": "INFO"},
    host_network=True,
    together="example.com/rack",
    spot="gke",
    scheduler="volcano",
    queue="research",
    user=1000,
    env={"LEVEL": 3, "VERBOSE": False},
    secret_env={"TOKEN": "hub/token"},
    grace_seconds=120,
    deadline_seconds=3600,
    start_seconds=600,
    queue_seconds=60,
    ttl_seconds=86400,
    pod=pod_patch(
        {
            "imagePullSecrets": [{"name": "registry"}],
            "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "one-nic"}],
            "nodeSelector": {"pool": "training", "fast": True},
            "affinity": {
                "podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": NEAR}]
                }
            },
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "example.com/rack", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "priorityClassName": "system-node-critical",
            "serviceAccountName": "trainer",
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
            "containers": [{"name": "upload", "image": "upload:1"}],
        },
        {
            "imagePullPolicy": "Never",
            "envFrom": [{"secretRef": {"name": "kubetrain-s3", "optional": True}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            "resources": {"limits": {"cpu": "16", "memory": "128Gi", "example.com/dongle": 2}},
        },
        labels={"sidecar.istio.io/inject": "true", "team": "vision"},
        annotations={"owner": "vision@example.com"},
    ),
)


def templates_in(manifest: Any) -> list[Manifest]:
    """The pod templates anywhere in a manifest."""
    if isinstance(manifest, list):
        return [found for each in manifest for found in templates_in(each)]
    if not isinstance(manifest, dict):
        return []
    if isinstance(manifest.get("spec"), dict) and "containers" in manifest["spec"]:
        return [manifest]
    return [found for each in manifest.values() for found in templates_in(each)]
