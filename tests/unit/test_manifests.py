"""The manifests of jobs, and the effect of each setting of a placement on them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.annotations import AVOIDED_NODES_ANNOTATION, TTL_ANNOTATION
from kubetrain_components.jobs.job import ClaimMount, Elastic, Job, Replica, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import companion_manifest, job_manifest, manifests_of
from kubetrain_components.jobs.kubernetes.manifests.pod_counts import replica_specs
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.jobs.kubernetes.manifests.volumes import CODE_MOUNT
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_checks import REQUIRED
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.transfer_container import fetching
from kubetrain_pipelines.doctor.capacity import matches_affinity
from kubetrain_pipelines.doctor.needs import Needs
from kubetrain_trainer.settings.config import TrainConfig
from support.manifests import (
    EVERY_SETTING,
    IDENTITY,
    PLAIN,
    batch,
    elastic,
    indexed,
    indexed_elastic,
    pytorch,
    tensorflow,
    trainjob,
)

EXPECTED = Path(__file__).parent / "manifests"
OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "1"}
INSTANCE = "0a1b2c3d"
LOCKS_MEMORY = {
    "container.securityContext.capabilities.add": ["IPC_LOCK"],
    "container.securityContext.runAsNonRoot": False,
    "container.securityContext.runAsUser": 0,
}
NOT_THESE = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("node-1", "node-2")]
"""Kubernetes takes exactly one value in a requirement for a field."""
IS_NODE_3 = {"key": "metadata.name", "operator": "In", "values": ["node-3"]}
FAST = {"key": "disk", "operator": "In", "values": ["fast"]}
UTILIZATION = {"type": "Utilization", "averageUtilization": 80}
METRICS = [{"type": "Resource", "resource": {"name": "cpu", "target": UTILIZATION}}]


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("pytorch", pytorch()),
        ("pytorch_with_every_setting", pytorch(EVERY_SETTING, metrics_port=8000)),
        ("elastic", elastic(replace(PLAIN, scale_metrics=METRICS))),
        ("tensorflow", tensorflow()),
        ("batch", batch()),
        ("trainer_tensorflow", trainjob(framework="tensorflow")),
    ],
)
def test_the_whole_manifest(name: str, job: Job) -> None:
    expected = (EXPECTED / f"{name}.yaml").read_text().replace("SPEC-HASH", job.spec_hash)
    assert manifests_of(job) == list(yaml.safe_load_all(expected))


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launcher_is_noted_on_its_jobs(launcher: Launcher, framework: str) -> None:
    kind = launcher.kind(framework)
    assert Launcher.of(kind) is launcher
    job = {JobKind.PYTORCH_JOB: pytorch(), JobKind.TF_JOB: tensorflow()}.get(
        kind, indexed(kind=kind, framework=framework)
    )
    assert job_manifest(job)["metadata"]["annotations"]["kubetrain/launcher"] == launcher
    assert "kubetrain/launcher" not in job_manifest(batch())["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("indexed", indexed(metrics_port=8000)),
        ("indexed_elastic", indexed_elastic()),
        ("indexed_tensorflow", indexed(framework="tensorflow")),
        ("trainjob", trainjob()),
    ],
)
def test_the_whole_manifest_of_one_creation_of_a_training_without_the_training_operator(name: str, job: Job) -> None:
    assert job_manifest(job, instance=INSTANCE) == expected_manifest(name, job)


@pytest.mark.parametrize(("name", "job"), [("indexed_service", indexed()), ("trainjob_runtime", trainjob())])
def test_the_whole_manifest_of_what_such_a_training_needs_beside_its_job(name: str, job: Job) -> None:
    assert companion_manifest(job, OWNER, INSTANCE) == expected_manifest(name, job)


@pytest.mark.parametrize("job", [pytorch(), elastic(), tensorflow(), batch()], ids=lambda job: job.kind)
def test_the_training_operator_and_a_job_of_one_pod_need_nothing_else(job: Job) -> None:
    assert companion_manifest(job, OWNER, INSTANCE) is None


def expected_manifest(name: str, job: Job) -> Any:
    return yaml.safe_load((EXPECTED / f"{name}.yaml").read_text().replace("SPEC-HASH", job.spec_hash))


MASTER = pytorch(replicas=(Replica(role="Master", count=1, command=("python", "train.py")),))
PARTS = {
    "container": "spec.pytorchReplicaSpecs.Master.template.spec.containers.0",
    "pod": "spec.pytorchReplicaSpecs.Master.template.spec",
    "template": "spec.pytorchReplicaSpecs.Master.template",
}
OWN_PODS = {"matchLabels": {"kubetrain/run-id": "run-7-94d812ac", "kubetrain/stage": "launch-training"}}
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SIDECAR = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}
SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
ISTIO = "sidecar.istio.io/inject"
EFFECTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"image": "own/image:3"}, {"container.image": "own/image:3"}),
    ({"pod": pod_patch({}, {"imagePullPolicy": "Always"})}, {"container.imagePullPolicy": "Always"}),
    (
        {"pod": pod_patch({"imagePullSecrets": [{"name": name} for name in ["one", "two"]]})},
        {"pod.imagePullSecrets": [{"name": "one"}, {"name": "two"}]},
    ),
    ({"cpu": "500m"}, {"container.resources.requests.cpu": "500m"}),
    ({"cpu": ""}, {"container.resources.requests.cpu": None}),
    (
        {"pod": pod_patch({}, {"resources": {"limits": {"cpu": "8"}}})},
        {"container.resources.limits.cpu": "8", "container.env.OMP_NUM_THREADS.value": "8"},
    ),
    (
        {"memory": "64Gi"},
        {"container.resources.requests.memory": "64Gi", "container.resources.limits.memory": "64Gi"},
    ),
    (
        {"pod": pod_patch({}, {"resources": {"limits": {"memory": "80Gi"}}})},
        {"container.resources.limits.memory": "80Gi"},
    ),
    (
        {"gpus": 8},
        {
            "container.resources.requests.nvidia.com/gpu": "8",
            "container.resources.limits.nvidia.com/gpu": "8",
            "container.env.OMP_NUM_THREADS": None,
        },
    ),
    (
        {"gpus": 1, "gpu_resource": "amd.com/gpu"},
        {
            "container.resources.requests.amd.com/gpu": "1",
            "container.resources.limits.amd.com/gpu": "1",
            "container.env.OMP_NUM_THREADS": None,
        },
    ),
    (
        {"rdma": {"rdma/hca": 1, "nvidia.com/ib0": 2}},
        {
            "container.resources.requests.rdma/hca": "1",
            "container.resources.limits.rdma/hca": "1",
            "container.resources.requests.nvidia.com/ib0": "2",
            "container.resources.limits.nvidia.com/ib0": "2",
            **LOCKS_MEMORY,
        },
    ),
    (
        {"pod": pod_patch({}, {"resources": {"limits": {"ephemeral-storage": "10Gi"}}})},
        {"container.resources.limits.ephemeral-storage": "10Gi"},
    ),
    ({"shm_size": "64Gi"}, {"pod.volumes.2.emptyDir.sizeLimit": "64Gi"}),
    ({"shm_size": ""}, {"pod.volumes.2": None, "container.volumeMounts.2": None}),
    (
        {"network": "ethernet"},
        {
            "container.env.NCCL_DEBUG": {"name": "NCCL_DEBUG", "value": "WARN"},
            "container.env.NCCL_IB_DISABLE": {"name": "NCCL_IB_DISABLE", "value": "1"},
            "container.env.NCCL_SOCKET_IFNAME": {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"},
        },
    ),
    (
        {"network": "infiniband", "nccl": {"NCCL_NET_GDR_LEVEL": "SYS"}},
        {
            "container.env.NCCL_DEBUG": {"name": "NCCL_DEBUG", "value": "WARN"},
            "container.env.NCCL_IB_DISABLE": {"name": "NCCL_IB_DISABLE", "value": "0"},
            "container.env.NCCL_IB_QPS_PER_CONNECTION": {"name": "NCCL_IB_QPS_PER_CONNECTION", "value": "4"},
            "container.env.NCCL_MIN_NCHANNELS": {"name": "NCCL_MIN_NCHANNELS", "value": "8"},
            "container.env.NCCL_NET": {"name": "NCCL_NET", "value": "IB"},
            "container.env.NCCL_NET_GDR_LEVEL": {"name": "NCCL_NET_GDR_LEVEL", "value": "SYS"},
        },
    ),
    ({"nccl": {"NCCL_MIN_NRINGS": 4}}, {"container.env.NCCL_MIN_NRINGS": {"name": "NCCL_MIN_NRINGS", "value": "4"}}),
    (
        {"host_network": True, "network": "ethernet"},
        {
            "pod.hostNetwork": True,
            "pod.dnsPolicy": "ClusterFirstWithHostNet",
            "container.ports": [{"name": "pytorchjob-port", "containerPort": 22277}],
            "container.env.NCCL_DEBUG": {"name": "NCCL_DEBUG", "value": "WARN"},
            "container.env.NCCL_IB_DISABLE": {"name": "NCCL_IB_DISABLE", "value": "1"},
            "container.env.NCCL_SOCKET_IFNAME": {
                "name": "NCCL_SOCKET_IFNAME",
                "value": "^lo,docker,cni,veth,cali,flannel",
            },
        },
    ),
    (
        {"pod": pod_patch(labels={ISTIO: True})},
        {f"template.metadata.labels.{ISTIO}": "true"},
    ),
    ({"pod": pod_patch({"nodeSelector": {"ssd": True}})}, {"pod.nodeSelector": {"ssd": "true"}}),
    ({"pod": pod_patch({"affinity": {"nodeAffinity": {"x": []}}})}, {"pod.affinity": {"nodeAffinity": {"x": []}}}),
    (
        {"together": "zone"},
        {
            "pod.affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"labelSelector": OWN_PODS, "topologyKey": "topology.kubernetes.io/zone"}
                    ]
                }
            }
        },
    ),
    (
        {"pod": pod_patch({"topologySpreadConstraints": [SPREAD]})},
        {"pod.topologySpreadConstraints": [{"labelSelector": OWN_PODS, **SPREAD}]},
    ),
    (
        {"pod": pod_patch({"topologySpreadConstraints": [{**SPREAD, "labelSelector": {}}]})},
        {"pod.topologySpreadConstraints": [{**SPREAD, "labelSelector": {}}]},
    ),
    ({"pod": pod_patch({"schedulerName": "bin-packing"})}, {"pod.schedulerName": "bin-packing"}),
    ({"pod": pod_patch({"tolerations": [{"operator": "Exists"}]})}, {"pod.tolerations": [{"operator": "Exists"}]}),
    ({"spot": "eks"}, {"pod.nodeSelector": {"eks.amazonaws.com/capacityType": "SPOT"}}),
    ({"spot": "karpenter"}, {"pod.nodeSelector": {"karpenter.sh/capacity-type": "spot"}}),
    (
        {"spot": "gke"},
        {
            "pod.nodeSelector": {"cloud.google.com/gke-spot": "true"},
            "pod.tolerations": [{"key": "cloud.google.com/gke-spot", "operator": "Exists", "effect": "NoSchedule"}],
        },
    ),
    (
        {"spot": "aks", "pod": pod_patch({"tolerations": [{"key": "gpu", "operator": "Exists"}]})},
        {
            "pod.nodeSelector": {"kubernetes.azure.com/scalesetpriority": "spot"},
            "pod.tolerations": [
                {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "gpu", "operator": "Exists"},
            ],
        },
    ),
    ({"pod": pod_patch({"priorityClassName": "high"})}, {"pod.priorityClassName": "high"}),
    ({"pod": pod_patch({"runtimeClassName": "nvidia"})}, {"pod.runtimeClassName": "nvidia"}),
    (
        {"scheduler": "volcano", "queue": "research", "pod": pod_patch({"priorityClassName": "high"})},
        {
            "spec.runPolicy.schedulingPolicy": {"minAvailable": 1, "queue": "research", "priorityClass": "high"},
            "pod.priorityClassName": "high",
        },
    ),
    (
        {"scheduler": "scheduler-plugins", "start_seconds": 900},
        {"spec.runPolicy.schedulingPolicy": {"minAvailable": 1, "scheduleTimeoutSeconds": 900}},
    ),
    (
        {"scheduler": "kueue", "queue": "research"},
        {"metadata.labels.kueue.x-k8s.io/queue-name": "research", "spec.runPolicy.suspend": True},
    ),
    (
        {"pod": pod_patch({"serviceAccountName": "trainer"})},
        {"pod.serviceAccountName": "trainer", "pod.automountServiceAccountToken": None},
    ),
    (
        {"user": 1000},
        {f"pod.securityContext.{name}": 1000 for name in ("runAsUser", "runAsGroup", "fsGroup")},
    ),
    ({"env": {"LEVEL": 3}}, {"container.env.LEVEL": {"name": "LEVEL", "value": "3"}}),
    (
        {"env": {"NODE_NAME": "mine"}},
        {"container.env.NODE_NAME.value": "mine", "container.env.NODE_NAME.valueFrom": None},
    ),
    (
        {"secret_env": {"TOKEN": "hub/token"}},
        {"container.env.TOKEN": {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}},
    ),
    (
        {"pod": pod_patch({}, {"envFrom": [{"secretRef": {"name": "s3"}}]})},
        {"container.envFrom": [{"secretRef": {"name": "s3"}}]},
    ),
    (
        {"pod": pod_patch({"volumes": [{"name": "a", "emptyDir": {}}]})},
        {"pod.volumes.3": {"name": "a", "emptyDir": {}}},
    ),
    (
        {"pod": pod_patch({}, {"volumeMounts": [{"name": "a", "mountPath": "/a"}]})},
        {"container.volumeMounts.3": {"name": "a", "mountPath": "/a"}},
    ),
    (
        {"pod": pod_patch({"initContainers": [SIDECAR]})},
        {"pod.initContainers": [{"securityContext": RESTRICTED, **SIDECAR}]},
    ),
    (
        {"pod": pod_patch({"containers": [{**SIDECAR, "securityContext": {}}]})},
        {"pod.containers.1": {**SIDECAR, "securityContext": {}}},
    ),
    (
        {"pod": pod_patch({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]})},
        {
            "pod.resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
            "container.resources.claims": [{"name": "gpu"}],
        },
    ),
    (
        {"pod": fetching(SIDECAR, CODE_MOUNT, {}, [{"name": "ca", "configMap": {"name": "ca"}}])},
        {
            "pod.initContainers": [{"securityContext": RESTRICTED, **SIDECAR}],
            "pod.volumes.3": {"name": "kubetrain-code", "emptyDir": {}},
            "pod.volumes.4": {"name": "ca", "configMap": {"name": "ca"}},
            "container.volumeMounts.3": {"name": "kubetrain-code", "mountPath": "/code", "readOnly": True},
            "container.env.PYTHONPATH": {"name": "PYTHONPATH", "value": "/code"},
            "container.env.KUBETRAIN_CODE": {"name": "KUBETRAIN_CODE", "value": "/code"},
        },
    ),
    ({"pod": pod_patch(labels={"team": "vision"})}, {"template.metadata.labels.team": "vision"}),
    ({"pod": pod_patch(annotations={"note": 1})}, {"template.metadata.annotations.note": "1"}),
    (
        {"grace_seconds": 5},
        {"pod.terminationGracePeriodSeconds": 5, "container.env.KUBETRAIN_GRACE_SECONDS.value": "5"},
    ),
    ({"ttl_seconds": 0}, {"spec.runPolicy.ttlSecondsAfterFinished": None}),
]
WITHOUT_EFFECT = {
    "check_imports": "used only by the first step: test_run_plan.py",
    "scale_metrics": "tested in the whole manifest of an elastic job",
    "restart_policy": "belongs to the replicas of a training",
    "queue_seconds": "used only by the launcher",
    "deadline_seconds": "counted only by the launcher: the cluster would include the time that pods wait",
    "max_restarts": "becomes the job's backoff limit, which the launcher counts",
    "rendezvous": "refused here, because the job is not elastic: test_etcd.py",
}


@pytest.mark.parametrize(("settings", "effect"), EFFECTS, ids="-".join)
def test_the_effect_of_a_setting(settings: dict[str, Any], effect: dict[str, Any]) -> None:
    changed = replace(MASTER, placement=replace(PLAIN, **settings))
    assert dict(difference(job_manifest(MASTER), job_manifest(changed))) == effect


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (trainjob(), "604800"),
        (trainjob(replace(PLAIN, ttl_seconds=0)), None),
        (MASTER, None),
        (replace(MASTER, replicas=(replace(MASTER.replicas[0], restart_policy=RestartPolicy.EXIT_CODE),)), "604800"),
        (indexed(), None),
    ],
)
def test_jobs_without_a_time_to_live_in_the_cluster_have_one_for_the_reaper(job: Job, seconds: str | None) -> None:
    manifest = job_manifest(job)
    spec = manifest["spec"].get("runPolicy", manifest["spec"])
    assert manifest["metadata"]["annotations"].get(TTL_ANNOTATION) == seconds
    assert job.placement.ttl_seconds == 0 or (spec.get("ttlSecondsAfterFinished") is None) == (seconds is not None)


def difference(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and new value of each difference except the spec hash; None if the value is gone."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from difference(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif path.endswith(".env"):
        yield from difference(by_name(before), by_name(after), path)
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip_longest(before, after)):
            yield from difference(old, new, f"{path}.{index}")
    elif before != after and not path.endswith("spec-hash"):
        name = next((name for name, part in PARTS.items() if path.startswith(part)), None)
        yield (name + path.removeprefix(PARTS[name]) if name else path), after


def by_name(variables: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {each["name"]: each for each in variables or []}


def test_every_setting_has_an_effect_or_a_reason_why_not() -> None:
    seen = {name for settings, _ in EFFECTS for name in settings} | WITHOUT_EFFECT.keys()
    assert set(Placement.names()) == seen


@pytest.mark.parametrize("settings", [{"queue_seconds": 9}, {"max_restarts": 9}])
def test_settings_of_the_launcher_do_not_change_a_manifest(settings: dict[str, Any]) -> None:
    changed = replace(MASTER, placement=replace(PLAIN, **settings))
    assert list(difference(job_manifest(MASTER), job_manifest(changed))) == []


def test_the_training_sets_the_restart_policy_and_the_backoff_limit() -> None:
    training = TrainingJob(
        framework="pytorch",
        config=TrainConfig(),
        pipeline="p",
        run_id="r",
        data_dir=Path("/data"),
        output_dir=Path("/output"),
        placement=replace(PLAIN, restart_policy="Never", max_restarts=4),
    )
    job = training.to_job()
    assert job.backoff_limit == 9, "one more than four restarts of each of two pods"
    spec = job_manifest(job)["spec"]
    assert {each["restartPolicy"] for each in spec["pytorchReplicaSpecs"].values()} == {"Never"}
    assert "backoffLimit" not in spec["runPolicy"], "the operator would also count what the cluster did"


def test_under_exit_code_the_operator_neither_counts_restarts_nor_cleans_up() -> None:
    replicas = tuple(replace(each, restart_policy=RestartPolicy.EXIT_CODE) for each in pytorch().replicas)
    assert job_manifest(pytorch(replicas=replicas))["spec"]["runPolicy"] == {"cleanPodPolicy": "None"}


def test_a_batch_job_may_have_a_queue_and_no_restarts_and_the_cluster_never_ends_it() -> None:
    settings = {"scheduler": "kueue", "queue": "q", "deadline_seconds": 60, "start_seconds": 30, "ttl_seconds": 0}
    (replica,) = batch().replicas
    never = batch(replace(PLAIN, **settings), replicas=(replace(replica, restart_policy=RestartPolicy.NEVER),))
    manifest = job_manifest(never)
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert {**manifest["spec"], "template": 0} == {
        "suspend": True,
        "backoffLimit": 0,
        "template": 0,
    }


def terms_of(job: Job) -> list[Manifest]:
    """Return what the scheduler requires of the pods beside which it places one."""
    (spec,) = [each["template"]["spec"] for each in replica_specs(job.kind, job_manifest(job)).values()]
    affinity = (spec.get("affinity") or {}).get("podAffinity") or {}
    terms: list[Manifest] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []
    return terms


def test_no_pod_that_an_elastic_job_can_do_without_is_placed_before_its_first() -> None:
    together, after_first = terms_of(elastic(replace(PLAIN, together="zone")))
    assert (together["labelSelector"], together["topologyKey"]) == (OWN_PODS, "topology.kubernetes.io/zone")
    first = {"training.kubeflow.org/replica-index": "0"}
    assert after_first["labelSelector"]["matchLabels"] == {**OWN_PODS["matchLabels"], **first}


def test_pods_whose_order_does_not_matter_or_is_not_ours_are_placed_in_any_order() -> None:
    near = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "kubernetes.io/hostname"}
    own = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    assert terms_of(elastic(replace(PLAIN, pod=pod_patch({"affinity": own})))) == [near], (
        "one pod would have to match both terms"
    )
    assert terms_of(elastic(elastic=Elastic(min_replicas=3, max_replicas=3))) == terms_of(indexed()) == []
    assert terms_of(elastic(replace(PLAIN, scheduler="volcano", queue="q"))) == []
    assert terms_of(indexed_elastic(replace(PLAIN, scheduler="kueue", queue="q"))) == []


def node_terms_of(job: Job) -> list[list[Manifest]]:
    """Return the terms of which a node must match one, for the pods of each role."""
    specs = [pods.spec for pods in Needs.of(manifests_of(job)).training]
    return [spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] for spec in specs]


@pytest.mark.parametrize(
    "kind", [pytorch, elastic, tensorflow, indexed, indexed_elastic, trainjob], ids=lambda kind: kind.__name__
)
def test_the_pods_of_each_kind_of_job_avoid_bad_nodes(kind: Callable[..., Job]) -> None:
    job = kind(avoided_nodes=("node-1", "node-2"))
    assert job_manifest(job)["metadata"]["annotations"][AVOIDED_NODES_ANNOTATION] == "node-1,node-2"
    assert node_terms_of(job) == [[{"matchFields": NOT_THESE}] for _ in job.replicas]


def test_nodes_are_avoided_in_addition_to_the_affinity_that_you_set() -> None:
    terms = [{"matchExpressions": [FAST]}, {"matchFields": [IS_NODE_3]}]
    preferred = [{"weight": 1, "preference": {"matchExpressions": [FAST]}}]
    nodes = {REQUIRED: {"nodeSelectorTerms": terms}, "preferredDuringSchedulingIgnoredDuringExecution": preferred}
    own = {"nodeAffinity": nodes, "podAntiAffinity": {"x": []}}
    made = trainjob(
        replace(PLAIN, together="zone", pod=pod_patch({"affinity": own})), avoided_nodes=("node-1", "node-2")
    )
    assert node_terms_of(made) == [
        [{"matchExpressions": [FAST], "matchFields": NOT_THESE}, {"matchFields": [IS_NODE_3, *NOT_THESE]}]
    ]
    (pods,) = Needs.of(manifests_of(made)).training
    assert pods.spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    assert pods.spec["affinity"].keys() == {"nodeAffinity", "podAffinity", "podAntiAffinity"}
    admits = [
        matches_affinity({"metadata": {"name": name, "labels": {"disk": disk}}}, pods.spec)
        for name, disk in (("node-1", "fast"), ("node-3", "slow"), ("node-4", "fast"), ("node-5", "slow"))
    ]
    assert admits == [False, True, True, False]


def test_an_elastic_gang_is_complete_with_the_minimum_number_of_pods() -> None:
    spec = job_manifest(elastic(replace(PLAIN, scheduler="volcano", queue="q")))["spec"]
    assert spec["runPolicy"]["schedulingPolicy"] == {"minAvailable": 2, "queue": "q"}


def test_jobs_on_a_nodes_network_have_their_own_ports() -> None:
    placement = replace(PLAIN, host_network=True)
    jobs = [elastic(placement, identity=replace(IDENTITY, run_id=run)) for run in ("one", "two")]
    ports = [job_manifest(job)["spec"]["elasticPolicy"]["rdzvPort"] for job in jobs]
    assert len(set(ports)) == 2
    chief = job_manifest(tensorflow(placement))["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]
    assert chief["containers"][0]["ports"] == [{"name": "tfjob-port", "containerPort": 22277}]
    worker = job_manifest(tensorflow(placement))["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    assert worker["containers"][0]["ports"] != chief["containers"][0]["ports"], "both may run on one node"
    assert "ports" not in job_manifest(batch(placement))["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("job", [pytorch, elastic, tensorflow, indexed, trainjob], ids=lambda job: job.__name__)
def test_the_role_of_the_chief_alone_declares_the_port_of_its_metrics(job: Callable[..., Job]) -> None:
    made = job(metrics_port=9000)
    for replica in made.replicas:
        (container,) = pod_template(made, replica)["spec"]["containers"]
        expected = [{"name": "metrics", "containerPort": 9000}] if replica.role == made.lead_role else None
        assert container.get("ports") == expected


def test_variables_of_yours_do_not_replace_those_of_the_job() -> None:
    job = pytorch(replace(PLAIN, env={"PYTHONUNBUFFERED": "0"}))
    (container,) = pod_template(job, job.replicas[0])["spec"]["containers"]
    assert {"name": "PYTHONUNBUFFERED", "value": "1"} in container["env"]


def test_labels_of_yours_replace_the_recommended_ones() -> None:
    job = pytorch(replace(PLAIN, pod=pod_patch(labels={"app.kubernetes.io/name": "vision"})))
    labels = pod_template(job, job.replicas[0])["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "vision"
    assert labels["app.kubernetes.io/component"] == "training"


@pytest.mark.parametrize(
    ("settings", "processes", "threads"),
    [
        ({"cpu": "4"}, 1, "4"),
        ({"cpu": "4"}, 2, "2"),
        ({"cpu": "500m"}, 1, "1"),
        ({"cpu": "1", "pod": pod_patch({}, {"resources": {"limits": {"cpu": "6"}}})}, 1, "6"),
        ({"cpu": "2"}, 8, "1"),
        ({"cpu": "4", "env": {"OMP_NUM_THREADS": 3}}, 1, "3"),
        ({"cpu": "4", "gpus": 1}, 1, None),
        ({"cpu": "4", "pod": pod_patch({}, {"resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}})}, 1, None),
        ({"cpu": "4", "pod": pod_patch({}, {"resources": {"limits": {"nvidia.com/gpu.shared": "1"}}})}, 1, None),
        ({"cpu": "4", "pod": pod_patch({}, {"resources": {"limits": {"example.com/dongle": 1}}})}, 1, "4"),
    ],
)
def test_a_process_has_as_many_threads_as_it_has_cpus(
    settings: dict[str, Any], processes: int, threads: str | None
) -> None:
    job = pytorch(replace(PLAIN, **settings), processes_per_replica=processes)
    container = job_manifest(job)["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    assert by_name(container["env"]).get("OMP_NUM_THREADS", {}).get("value") == threads


def test_a_volume_is_read_only_if_all_its_mounts_are() -> None:
    both = (
        ClaimMount(claim="shared", path="/data", sub_path="data", read_only=True),
        ClaimMount(claim="shared", path="/output", sub_path="output"),
    )
    spec = job_manifest(batch(mounts=both))["spec"]["template"]["spec"]
    assert spec["volumes"][0] == {"name": "claim-0", "persistentVolumeClaim": {"claimName": "shared"}}
    assert spec["containers"][0]["volumeMounts"][:2] == [
        {"name": "claim-0", "mountPath": "/data", "subPath": "data", "readOnly": True},
        {"name": "claim-0", "mountPath": "/output", "subPath": "output"},
    ]


def test_a_job_has_its_owners_reference() -> None:
    assert job_manifest(batch(), OWNER)["metadata"]["ownerReferences"] == [OWNER]
