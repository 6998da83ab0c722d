"""A cluster accepts our manifests: the operator's schemas, its webhooks, and pod admission."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.job import Elastic, Job
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest, manifests_of
from kubetrain_components.jobs.pod_patch import pod_patch
from support.manifests import EVERY_SETTING, PLAIN, batch, elastic, pytorch, tensorflow

pytestmark = [pytest.mark.cluster, pytest.mark.core]

CRDS = Path(os.environ.get("CLUSTER_HOME", "/var/tmp/test-cluster"), "operator", "base", "crds")
METRIC = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}
KUEUE = replace(PLAIN, scheduler="kueue", queue="research", together="zone", spot="aks", network="ethernet")
GANG = replace(
    PLAIN,
    scheduler="scheduler-plugins",
    deadline_seconds=60,
    secret_env={"A": "b/c"},
    pod=pod_patch({}, {"envFrom": [{"secretRef": {"name": "d"}}]}),
)
ETCD = replace(PLAIN, rendezvous={"backend": "etcd-v2"})
RESTRICTED = [
    ("pytorch", pytorch()),
    ("elastic", elastic(replace(PLAIN, scale_metrics=[METRIC]))),
    ("elastic with etcd", elastic(ETCD)),
    ("tensorflow", tensorflow()),
    ("batch", batch()),
    *[(f"{make.__name__} in a queue", make(KUEUE)) for make in (pytorch, tensorflow, batch)],
    ("elastic in a queue", elastic(KUEUE, elastic=Elastic(min_replicas=2, max_replicas=3))),
    *[(f"{make.__name__} in a gang", make(GANG)) for make in (pytorch, elastic, tensorflow)],
]
# Of the objects that a pod refers to, only its account must exist for admission.
PRIVILEGED = [
    (
        f"{make.__name__} with every setting",
        make(EVERY_SETTING.patched({"spec": {"serviceAccountName": "default"}})),
    )
    for make in (pytorch, elastic, tensorflow, batch)
]


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    api = KubernetesApi.connect(namespace)
    while api.get(api.path("v1", "serviceaccounts", "default")) is None:  # pods are rejected until it exists
        time.sleep(0.1)
    return api


def create(api: KubernetesApi, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Create the object as a dry run, with an error for unknown fields."""
    return api.create(path, manifest, dryRun="All", fieldValidation="Strict")


def create_job(api: KubernetesApi, job: Job, manifest: dict[str, Any]) -> dict[str, Any]:
    return create(api, api.path(*job.kind.traits.resource), manifest)


def create_pods(api: KubernetesApi, job: Job) -> None:
    """Create a pod of each replica like the operator, which does not check the template itself."""
    spec = job_manifest(job)["spec"]
    replicas = spec.get("pytorchReplicaSpecs") or spec.get("tfReplicaSpecs") or {"Job": spec}
    for role, replica in replicas.items():
        template = replica["template"]
        metadata = {**template["metadata"], "name": f"pod-{role.lower()}"}
        pod_spec = {"restartPolicy": replica.get("restartPolicy"), **template["spec"]}
        create(api, api.path("v1", "pods"), {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec})


@pytest.mark.parametrize(
    "job", [job for _, job in RESTRICTED + PRIVILEGED], ids=[name for name, _ in RESTRICTED + PRIVILEGED]
)
def test_the_cluster_accepts_the_manifest_unchanged(api: KubernetesApi, job: Job) -> None:
    manifest = job_manifest(job)
    accepted = create_job(api, job, manifest)
    assert is_within(manifest, accepted), "the server adds defaults, and removes nothing"


def is_within(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict):
        return all(key in theirs and is_within(value, theirs[key]) for key, value in ours.items())
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(is_within, ours, theirs))
    return bool(ours == theirs)


@pytest.mark.parametrize("job", [job for _, job in RESTRICTED], ids=[name for name, _ in RESTRICTED])
def test_a_namespace_that_enforces_restricted_accepts_the_pods(api: KubernetesApi, job: Job) -> None:
    create_pods(api, job)


def test_a_namespace_that_enforces_restricted_accepts_the_etcd_of_a_job(api: KubernetesApi) -> None:
    etcd, service, _ = manifests_of(elastic(ETCD))
    for manifest, resource in ((etcd, ("batch/v1", "jobs")), (service, ("v1", "services"))):
        assert is_within(manifest, create(api, api.path(*resource), manifest))
    template = etcd["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "etcd"}, "spec": template["spec"]}
    create(api, api.path("v1", "pods"), pod)


@pytest.mark.parametrize("job", [job for _, job in PRIVILEGED], ids=[name for name, _ in PRIVILEGED])
def test_it_rejects_only_the_nodes_network_and_locked_memory(api: KubernetesApi, job: Job) -> None:
    """An invalid pod would be rejected earlier, as one with a RuntimeClass that does not exist. Locking memory
    requires root."""
    job = replace(job, placement=job.placement.patched({"spec": {"runtimeClassName": None}}))
    with pytest.raises(KubernetesError, match="violates PodSecurity") as rejected:
        create_pods(api, job)
    violations = str(rejected.value).split("violates PodSecurity")[1]
    assert "hostNetwork=true" in violations
    assert "IPC_LOCK" in violations
    assert "runAsUser=0" in violations
    others = ("seccompProfile", "allowPrivilegeEscalation", "hostPath", "privileged")
    assert not [each for each in others if each in violations]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"runPolicy": {"cleanPods": "All"}}, r"does not know the field spec\.runPolicy\.cleanPods"),
        ({"nprocPerNode": 8}, "nprocPerNode"),
        ({"elasticPolicy": {"nProcPerNode": 8}}, "must not be used with"),
    ],
    ids=["unknown field", "wrong type", "webhook"],
)
def test_the_schema_and_the_webhook_are_checked(api: KubernetesApi, change: dict[str, Any], error: str) -> None:
    manifest = job_manifest(pytorch())
    with pytest.raises(KubernetesError, match=error):
        create_job(api, pytorch(), {**manifest, "spec": {**manifest["spec"], **change}})


@pytest.mark.skipif(not CRDS.is_dir(), reason="the operator's files are missing: set CLUSTER_HOME to their folder")
@pytest.mark.parametrize("plural", ["pytorchjobs", "tfjobs"])
def test_the_clusters_schema_is_the_operators(api: KubernetesApi, plural: str) -> None:
    name = f"{plural}.kubeflow.org"
    files = [yaml.safe_load(path.read_text()) for path in CRDS.glob(f"*{plural}.yaml")]
    (own,) = [each for each in files if each.get("metadata", {}).get("name") == name]
    served = api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    assert served is not None
    assert served["spec"]["versions"][0]["schema"] == own["spec"]["versions"][0]["schema"]
