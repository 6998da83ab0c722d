"""The findings on a cluster: each status, and a remedy for everything that is missing."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.expose_dataset.storage_facts import StorageFacts
from kubetrain_components.jobs.job_kinds import COMMAND_KINDS, JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.manifest import Manifest
from kubetrain_components.object_store.credentials import REQUIRED_VARIABLES
from kubetrain_components.run.names import find_setting
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.cli import doctor as doctor_command
from kubetrain_pipelines.cli.doctor import DoctorOptions
from kubetrain_pipelines.doctor import admission, capacity, data, installed, permissions, pod_program, probes, queues
from kubetrain_pipelines.doctor.cluster import Cluster
from kubetrain_pipelines.doctor.deploy_files import deploy_folder, role_of
from kubetrain_pipelines.doctor.examine import Examination
from kubetrain_pipelines.doctor.finding import Finding, Status, missing, ok, skipped, unknown, warning
from kubetrain_pipelines.doctor.judge_probes import judge_outcomes
from kubetrain_pipelines.doctor.launcher import judge_launcher, judge_trainer, spec_fields
from kubetrain_pipelines.doctor.needs import NeededSecret, Needs
from kubetrain_pipelines.doctor.pipelines_api import check_pipelines
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.settings.config import TrainConfig
from support.api_server import ApiServer, answer, hang
from support.faulty_s3 import FaultyS3, refused
from support.kfp_server import KfpServer
from support.planned import planned

OK, WARNING, MISSING, UNKNOWN, SKIPPED = Status


def pod(**spec: Any) -> str:
    return f"pods.pod={json.dumps({'spec': spec})}"


def needs(*pairs: str, pipeline: str = "train-pytorch") -> Needs:
    return Needs.of(planned_manifests(planned(*pairs, source=pipeline)))


def operator(*arguments: str, image: str = "training-operator:v1.9.4", has_template: bool = True) -> Manifest:
    mount = {"name": "t", "mountPath": "/etc/config"}
    container = {"image": image, "command": ["/manager", *arguments], "volumeMounts": [mount] if has_template else []}
    pod = {"containers": [container], "volumes": [{"name": "t", "configMap": {"name": "pytorch-init-container"}}]}
    metadata = {"name": "training-operator", "namespace": "kubeflow"}
    return {"metadata": metadata, "spec": {"template": {"spec": pod}}, "status": {"availableReplicas": 1}}


def node(**allocatable: str) -> Manifest:
    return {
        "metadata": {"labels": {"pool": "gpu"}},
        "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", **allocatable}},
    }


def quota(used: dict[str, str] | None = None, **hard: str) -> Manifest:
    hard = {name.replace("__", "/").replace("_", "."): value for name, value in hard.items()}
    return {"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used or {}}}


def storage_class(name: str, provisioner: str = "csi", *, is_default: bool = False) -> Manifest:
    annotations = {data.DEFAULT_CLASS: "true"} if is_default else {}
    return {"metadata": {"name": name, "annotations": annotations}, "provisioner": provisioner}


def check(finding: Finding, status: Status, evidence: str, remedy: str = "") -> None:
    assert finding.status is status, finding
    assert re.search(evidence, finding.evidence), finding
    assert re.search(remedy, finding.remedy), finding
    assert finding.remedy or status in (OK, UNKNOWN, SKIPPED), "everything that is missing has a remedy"
    for name in re.findall(r"--set ([\w.]+)=", f"{finding.evidence} {finding.remedy}"):
        find_setting(".".join(name.split(".")[:2]))


def test_needs_are_those_of_the_manifests() -> None:
    asked = needs(
        "pods.workers=3", "pods.gpus=8", "pods.cpu=500m", "pods.memory=1Gi", 'pods.secret_env={"TOKEN": "hub/token"}'
    )
    assert [(pods.stage, pods.role, pods.count) for pods in asked.pods] == [
        ("sync_dataset", "Pod", 1),
        ("launch_training", "Master", 1),
        ("launch_training", "Worker", 2),
        ("evaluate_model", "Pod", 1),
    ]
    total = {name: str(value) for name, value in asked.peak().items()}
    assert total["requests.nvidia.com/gpu"] == total["limits.nvidia.com/gpu"] == "24"
    assert (total["cpu"], total["pods"], total["count/pytorchjobs.kubeflow.org"]) == ("1.600", "4", "1")
    assert asked.secrets["kubetrain-s3"].is_optional
    assert asked.secrets["hub"] == NeededSecret(frozenset({"token"}))


def test_a_secret_is_required_if_anything_requires_it() -> None:
    assert not needs('pods.secret_env={"TOKEN": "kubetrain-s3/token"}').secrets["kubetrain-s3"].is_optional


@pytest.mark.parametrize(
    ("launcher", "kind", "objects"),
    [
        ("job", JobKind.BATCH_JOB, {"jobs.batch", "services"}),
        (
            "trainer",
            JobKind.TRAIN_JOB,
            {
                *("trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org"),
                *("jobsets.jobset.x-k8s.io", "jobs.batch", "services"),
            },
        ),
    ],
)
def test_the_needs_of_a_training_without_the_training_operator(launcher: str, kind: JobKind, objects: set[str]) -> None:
    asked = needs("pods.workers=3", "pods.gpus=8", "pods.cpu=500m", f"pods.launcher={launcher}")
    (training,) = asked.training
    assert (asked.kind, training.role, training.count) == (kind, "Pod", 3)
    assert training.spec["containers"][0]["name"] == kind.traits.container
    total = asked.peak()
    assert {name.removeprefix("count/") for name in total if name.startswith("count/")} == {*objects, "pods"}
    assert (total["pods"], total["requests.nvidia.com/gpu"], total["services"]) == (4, 24, 1)
    assert not asked.has_workers_beside_master


def test_a_pod_needs_what_its_containers_request_together() -> None:
    def container(cpu: str, **fields: str) -> dict[str, Any]:
        return {"name": f"c{cpu}", "image": "i", "resources": {"requests": {"cpu": cpu}}, **fields}

    def cpu(**spec: list[dict[str, Any]]) -> str:
        return str(needs("pods.cpu=1", pod(**spec)).training[0].resources()["cpu"])

    beside, before, sidecar = container("2"), container("8"), container("3", restartPolicy="Always")
    limited = {**beside, "resources": {"limits": {"cpu": "2"}}}
    assert cpu(containers=[beside]) == "3"
    assert cpu(containers=[limited]) == "3", "a limit is also the request"
    assert cpu(initContainers=[before], containers=[beside]) == "8", "it ends before the others start"
    assert cpu(initContainers=[sidecar], containers=[beside]) == "6", "it runs beside the others"
    assert cpu(initContainers=[sidecar, before]) == "11"


@pytest.mark.parametrize(
    ("item", "rule"),
    [
        (
            {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"},
            "topologySpreadConstraints",
        ),
        ({"name": "gpu", "resourceClaimTemplateName": "gpus"}, "resourceClaims"),
    ],
)
def test_doctor_says_what_it_cannot_judge_about_nodes(item: dict[str, Any], rule: str) -> None:
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}}}
    asked = needs(pod(**{rule: [item]})).training
    check(capacity.judge_nodes([node], asked, can_grow=False), WARNING, f"{rule} may leave less", rule)


TRAINER_BESIDE_OPERATOR = {"trainjobs": 6, "trainingruntimes": 3, "pytorchjobs": 1, "mpijobs": 1}
ALIKE = {"tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs"}


def calls_of(
    file: str, groups: list[str], launcher: Launcher = Launcher.TRAINING_OPERATOR, *served: Launcher
) -> list[permissions.Call]:
    return permissions.calls_of(file, groups, launcher, served)


@pytest.mark.parametrize(
    ("launcher", "served", "verbs"),
    [
        (Launcher.JOB, [], {"services": 3}),
        (Launcher.TRAINER, [], {"trainjobs": 6, "trainingruntimes": 3}),
        (Launcher.TRAINING_OPERATOR, [], {"pytorchjobs": 6, "tfjobs": 6, "mpijobs": 1}),
        (Launcher.JOB, [Launcher.TRAINER, Launcher.JOB], {"services": 3, "trainjobs": 1}),
        (
            Launcher.TRAINER,
            [Launcher.TRAINING_OPERATOR],
            TRAINER_BESIDE_OPERATOR,
        ),
    ],
)
def test_a_run_needs_the_permissions_of_its_launcher_and_to_list_the_jobs_of_others(
    launcher: Launcher, served: list[Launcher], verbs: dict[str, int]
) -> None:
    calls = calls_of("launch.yaml", [], launcher, *served)
    found = Counter(call.resource for call in calls if call.resource in permissions.OF_LAUNCHERS)
    assert {name: number for name, number in found.items() if name not in ALIKE or number > 1} == verbs


def test_an_account_needs_permission_for_every_call_of_the_role() -> None:
    calls = calls_of("launch.yaml", ["argoproj.io"])
    assert {call.resource for call in calls} == {
        *("pytorchjobs", "tfjobs", "jobs", "pods", "pods/log", "persistentvolumeclaims", "workflows"),
        *(kind.traits.plural for kind in COMMAND_KINDS),
    }
    other = {"services", "trainjobs", "rayjobs"}
    granted = [rule for rule in role_of("launch.yaml")["rules"] if not {*rule["resources"]} & other]
    runtimes = {"create", "patch", "delete"}
    assert len(calls) == sum(len(rule["resources"]) * len(rule["verbs"]) for rule in granted) - len(runtimes)
    check(
        permissions.judge_permissions("launch.yaml", dict.fromkeys(calls, True), "runner", "team"),
        OK,
        "has all permissions of deploy/rbac/launch.yaml",
    )
    allowed = {call: call.resource != "pods/log" for call in calls}
    check(
        permissions.judge_permissions("launch.yaml", allowed, "runner", "team"), MISSING, "runner may not get pods/log$"
    )


def test_the_remedy_for_permissions_is_the_role_bound_to_the_account() -> None:
    calls = calls_of("storage_classes.yaml", [])
    finding = permissions.judge_permissions("storage_classes.yaml", dict.fromkeys(calls, False), "runner", "team")
    check(finding, WARNING, "may not get storageclasses.storage.k8s.io: storage.exposure=auto shares")
    role, binding = yaml.safe_load_all(finding.remedy.split("<<'EOF'\n")[1].removesuffix("EOF"))
    assert role == role_of("storage_classes.yaml")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "runner", "namespace": "team"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_permissions_on_what_the_cluster_lacks_are_not_needed() -> None:
    assert not any(call.group == "argoproj.io" for call in calls_of("launch.yaml", []))


def test_the_access_reviews() -> None:
    log = next(call for call in calls_of("launch.yaml", []) if call.resource == "pods/log")
    path, question = permissions.review_of(log, "team", "runner")
    assert path.endswith("/namespaces/team/localsubjectaccessreviews")
    asked = {"resource": "pods", "subresource": "log", "verb": "get", "namespace": "team"}
    assert question["spec"]["resourceAttributes"] == asked
    assert question["spec"]["user"] == "system:serviceaccount:team:runner"
    (classes,) = calls_of("storage_classes.yaml", [])
    path, question = permissions.review_of(classes, "team", "runner")
    assert path.endswith("/v1/subjectaccessreviews")
    assert "namespace" not in question["spec"]["resourceAttributes"]


def test_without_access_to_reviews_the_permissions_of_the_account_are_unknown() -> None:
    calls = calls_of("launch.yaml", [])
    own = permissions.judge_own_permissions(dict.fromkeys(calls, True), "runner", "bob may not create reviews")
    check(
        own,
        UNKNOWN,
        r"cannot check .* of runner \(bob may not.*\); your own account has all of them",
    )


AUTO, OPERATOR, TRAINER, JOB, RAY = Launcher


@pytest.mark.parametrize(
    ("wanted", "served", "status", "evidence", "remedy"),
    [
        (AUTO, [OPERATOR, TRAINER, JOB], OK, r"^training-operator .*\(the cluster has PyTorchJob\).* retired", ""),
        (AUTO, [TRAINER, JOB], OK, r"^trainer .*TrainJob and no PyTorchJob\); it has no volcano, .*ttl_seconds", ""),
        (AUTO, [JOB], OK, r"^job .*no PyTorchJob and no TrainJob\); it has no volcano, .*scale_metrics", ""),
        (TRAINER, [OPERATOR, TRAINER, JOB], OK, r"^trainer .*\(as set\)", ""),
        (JOB, [OPERATOR, JOB], OK, r"^job .*\(as set\)", ""),
        (
            OPERATOR,
            [TRAINER, JOB],
            MISSING,
            "is training-operator, but .* no PyTorchJob",
            "1.9.4.*\nor .*: trainer",
        ),
        (TRAINER, [OPERATOR, JOB], MISSING, "no TrainJob", "manifests/overlays/manager.*\nor --set pods.launcher=auto"),
        (RAY, [OPERATOR, JOB, RAY], OK, r"^ray .*\(as set\); it needs Ray in pods.image", ""),
        (RAY, [OPERATOR, JOB], MISSING, "no RayJob", "ray-operator.*\nor --set pods.launcher=auto"),
    ],
)
def test_the_launcher_of_a_run(
    wanted: Launcher, served: list[Launcher], status: Status, evidence: str, remedy: str
) -> None:
    check(judge_launcher(wanted, served, "pytorch", ""), status, evidence, remedy)


def test_a_launcher_that_cannot_run_the_training_says_why() -> None:
    finding = judge_launcher(AUTO, [TRAINER, JOB], "pytorch", "volcano does not start a TrainJob as a gang")
    check(finding, MISSING, "trainer .* no PyTorchJob.*: volcano does not start", "training-operator|ref=v1.9.4")


def trainer(image: str = "trainer-controller-manager:v2.3.0", available: int = 1) -> Manifest:
    metadata = {"name": "kubeflow-trainer-controller-manager", "namespace": "kubeflow-system"}
    pod = {"containers": [{"image": image}]}
    return {"metadata": metadata, "spec": {"template": {"spec": pod}}, "status": {"availableReplicas": available}}


NEW, OLD = ["runtimeRef", "runtimePatches"], ["runtimeRef", "podTemplateOverrides"]


@pytest.mark.parametrize(
    ("deployment", "fields", "groups", "status", "evidence", "remedy"),
    [
        (trainer(), NEW, ["jobset.x-k8s.io"], OK, "v2.3.0 is running in kubeflow-system, version 2.2 or later", ""),
        (trainer(), OLD, ["jobset.x-k8s.io"], MISSING, "older than 2.2.*podTemplateOverrides", "ref=v2.3.0.*\n.*=job"),
        (trainer(), ["suspend"], ["jobset.x-k8s.io"], MISSING, "has no runtimePatches$", "ref=v2.3.0"),
        (trainer(), NEW, [], MISSING, "JobSet, which Trainer needs", "ref=v2.3.0"),
        (trainer(available=0), NEW, ["jobset.x-k8s.io"], MISSING, "is not running", "kubectl .* logs"),
        (None, NEW, ["jobset.x-k8s.io"], WARNING, "was not found", "get deployments"),
        (trainer(), None, ["jobset.x-k8s.io"], WARNING, "version is unknown", "2.2 or later"),
    ],
)
def test_trainer(
    deployment: Manifest | None,
    fields: list[str] | None,
    groups: list[str],
    status: Status,
    evidence: str,
    remedy: str,
) -> None:
    check(judge_trainer(deployment, fields, groups), status, evidence, remedy)


def described(*fields: str) -> Manifest:
    """Return the description of Trainer's API as a server publishes it."""
    schema = {
        "properties": {"spec": {"properties": {field: {} for field in fields}}, "status": {}},
        "x-kubernetes-group-version-kind": [{"group": "trainer.kubeflow.org", "kind": "TrainJob"}],
    }
    return {"components": {"schemas": {"other": {"type": "object"}, "TrainJob": schema}}}


def test_the_fields_of_a_train_job_are_read_from_the_description_of_its_api() -> None:
    assert spec_fields(described(*NEW), "TrainJob") == set(NEW)
    assert spec_fields(described(), "TrainJob") is None
    assert spec_fields({"components": {"schemas": {"other": {}}}}, "TrainJob") is None
    assert spec_fields(None, "TrainJob") is None


def test_the_operator() -> None:
    check(installed.judge_operator(operator()), OK, "v1.9.4 is running in kubeflow$")
    check(installed.judge_operator(operator("--gang-scheduler-name=volcano")), OK, "gang scheduler volcano")
    check(installed.judge_operator(None), MISSING, "is not deployed", "kubectl apply --server-side -k")
    check(installed.judge_operator({**operator(), "status": {}}), MISSING, "is not running", "kubectl .* logs")
    check(installed.judge_operator(operator(image="operator:v1.8.1")), WARNING, "not tested with", "1.9")
    check(installed.judge_operator(operator(image="operator@sha256:abc")), WARNING, "does not contain its version")


TEMPLATE = (deploy_folder() / "operator" / "init_container.yaml").read_text()
BARE = "- name: init-pytorch\n  image: {{.InitContainerImage}}\n  command: [sh, -c, 'nslookup {{.MasterAddr}}']\n"


@pytest.mark.parametrize(
    ("template", "is_restricted", "is_needed", "status", "evidence"),
    [
        (TEMPLATE, True, True, OK, "passes Pod Security restricted"),
        (None, True, True, MISSING, "refuses the Workers of a job with a Master"),
        (BARE, True, True, MISSING, "refuses the Workers of a job with a Master"),
        ("{{", True, True, MISSING, "refuses the Workers of a job with a Master"),
        (None, False, True, OK, "does not require one"),
        (None, True, False, OK, "not needed"),
    ],
)
def test_the_operators_init_container(
    template: str | None, is_restricted: bool, is_needed: bool, status: Status, evidence: str
) -> None:
    finding = installed.judge_init_container(
        operator(has_template=template is not None), template, is_restricted=is_restricted, is_needed=is_needed
    )
    check(finding, status, evidence)
    assert ("patch deployment" in finding.remedy) == (template is None and status is MISSING)
    assert ("rollout restart" in finding.remedy) == (template is not None and status is MISSING)


def test_a_template_elsewhere_is_not_checked() -> None:
    elsewhere = operator("--pytorch-init-container-template-file", "/mine/template.yaml")
    finding = installed.judge_init_container(elsewhere, None, is_restricted=True, is_needed=True)
    check(finding, WARNING, "reads its template from /mine/template.yaml")


def test_only_pytorch_with_a_master_has_an_init_container() -> None:
    assert needs().has_workers_beside_master
    assert not needs("pods.workers=1").has_workers_beside_master
    assert not needs("pods.workers=2", "pods.min_workers=2").has_workers_beside_master
    assert not needs(pipeline="train-tensorflow").has_workers_beside_master


@pytest.mark.parametrize(
    ("health", "status", "evidence"),
    [
        ({"tag_name": "2.17.0", "multi_user": True}, OK, "version 2.17.0, multi-user"),
        ({"tag_name": "2.16.1"}, WARNING, "schedules cannot have a --service-account"),
        ({"commit_sha": "unknown"}, WARNING, "the version cannot be compared"),
        (None, SKIPPED, "not found"),
    ],
)
def test_kubeflow_pipelines(health: dict[str, Any] | None, status: Status, evidence: str) -> None:
    check(installed.judge_kfp(health, "http://kfp"), status, evidence)


@pytest.mark.parametrize(
    ("setting", "instead"),
    [("data.delivery=cache", "data.delivery=volume"), ("storage.output=s3://b/out", "leave it out")],
)
def test_some_settings_need_sidecars(setting: str, instead: str) -> None:
    run = planned(setting, "data.format=tar_shards")
    for release in ("v1.29.0", "v1.34.4-gke.100"):
        check(installed.judge_kubernetes(release, run), OK, f"Kubernetes {release}")
    check(installed.judge_kubernetes("v1.28.9", planned()), OK, "Kubernetes v1.28.9")
    old = installed.judge_kubernetes("v1.28.9", run)
    needed = f"which {setting.removesuffix('=s3://b/out')} needs"
    check(old, MISSING, f"Kubernetes v1.28.9 has no sidecars, {needed}", f"update it to 1.29 or later, or .*{instead}")


def test_istio() -> None:
    check(installed.judge_istio({}, is_wanted=False), OK, "does not inject")
    check(installed.judge_istio({"istio-injection": "enabled"}, is_wanted=False), OK, "opt out")
    check(installed.judge_istio({"istio.io/rev": "1-24"}, is_wanted=True), WARNING, "never ends", "istio.io/inject")


@pytest.mark.parametrize(
    ("scheduler", "configured", "status", "remedy"),
    [
        ("volcano", "volcano", OK, ""),
        ("scheduler-plugins", "scheduler-plugins-scheduler", OK, ""),
        ("volcano", "", MISSING, '"value": \\["/manager", "--gang-scheduler-name=volcano"\\]'),
        ("scheduler-plugins", "volcano", MISSING, '"--gang-scheduler-name=scheduler-plugins-scheduler"'),
    ],
)
def test_a_gang_scheduler_is_what_the_operator_was_started_with(
    scheduler: str, configured: str, status: Status, remedy: str
) -> None:
    started = operator(*([f"--gang-scheduler-name={configured}"] if configured else []))
    finding = queues.judge_gang(Placement(scheduler=scheduler), queues.GANGS.values(), started)
    check(finding, status, "operator was started", remedy)
    assert not re.search("volcano.*scheduler-plugins", finding.remedy), "one gang scheduler, not two"


def test_a_gang_scheduler_that_is_not_installed_or_not_named() -> None:
    check(queues.judge_gang(Placement(scheduler="volcano"), [], operator()), MISSING, "not installed", "volcano.sh")
    check(queues.judge_no_queue(operator()), SKIPPED, "not requested")
    started = operator("--gang-scheduler-name=volcano")
    check(queues.judge_no_queue(started), WARNING, "started with volcano", "--set pods.scheduler=volcano")
    other = operator("--gang-scheduler-name", "scheduler-plugins-scheduler", "--zap-log-level=1")
    check(
        queues.judge_no_queue(other),
        WARNING,
        "scheduler-plugins-scheduler",
        "--set pods.scheduler=scheduler-plugins, so",
    )
    check(
        queues.judge_gang(Placement(scheduler="volcano"), queues.GANGS.values(), other),
        MISSING,
        "not with volcano",
        r'"value": \["/manager", "--zap-log-level=1", "--gang-scheduler-name=volcano"\]',
    )


def frameworks(*lines: str) -> str:
    """Return Kueue's configuration with these entries, which may be comments, as in the one that it comes with."""
    entries = "".join(f"  {line}\n" if line.startswith("#") else f"  - {line}\n" for line in lines)
    return f"kind: Configuration\nintegrations:\n  frameworks:\n{entries}#fairSharing:\n"


@pytest.mark.parametrize(
    ("version", "active", "settings", "status", "evidence", "remedy"),
    [
        ("", None, None, MISSING, "not installed", "kueue.sigs.k8s.io"),
        ("v1beta1", None, None, MISSING, "LocalQueue research does not exist in team", "clusterQueue: only"),
        ("v1beta1", False, None, MISSING, "is not active: stopped", "describe clusterqueue only"),
        ("v1beta2", True, None, WARNING, "cannot read", "kubectl"),
        ("v1beta2", True, "integrations: [", WARNING, "cannot read", "kubectl"),
        ("v1beta2", True, "integrations: x", WARNING, "cannot read", "kubectl"),
        ("v1beta2", True, "integrations: {frameworks: kubeflow.org/pytorchjob}", WARNING, "cannot read", "kubectl"),
        ("v1beta2", True, "integrations: {frameworks: []}", MISSING, "does not manage kubeflow.org/pytorchjob and", ""),
        ("v1beta2", True, "kind: Configuration", MISSING, "does not manage kubeflow.org/pytorchjob:", "add kubeflow"),
        ("v1beta2", True, frameworks('"batch/job"', '# "kubeflow.org/pytorchjob"'), MISSING, "pytorchjob", "rollout"),
        (
            "v1beta2",
            True,
            frameworks("kubeflow.org/pytorchjob"),
            MISSING,
            "does not manage batch/job:",
            "add batch/job",
        ),
        ("v1beta2", True, frameworks("batch/job", '"kubeflow.org/pytorchjob"'), OK, "is active", ""),
    ],
)
def test_kueue(
    version: str, active: bool | None, settings: str | None, status: Status, evidence: str, remedy: str
) -> None:
    condition = {"type": "Active", "status": str(active), "message": "stopped"}
    queue = {"spec": {"clusterQueue": "only"}, "status": {"conditions": [condition]}} if active is not None else None
    stored = {"data": {queues.KUEUE_CONFIGURATION: settings}} if settings is not None else None
    finding = queues.judge_kueue("research", "team", queue, ["only"], version, stored, "kubeflow.org/pytorchjob")
    check(finding, status, evidence, remedy)


def test_the_names_that_kueue_gives_to_the_kinds_of_jobs() -> None:
    assert [queues.framework_of(kind) for kind in JobKind] == [
        "kubeflow.org/pytorchjob",
        "kubeflow.org/tfjob",
        *("kubeflow.org/mpijob", "kubeflow.org/xgboostjob", "kubeflow.org/paddlejob", "kubeflow.org/jaxjob"),
        "trainer.kubeflow.org/trainjob",
        "batch/job",
        "ray.io/rayjob",
    ]


def test_a_training_without_an_operator_needs_no_framework_but_batch_jobs() -> None:
    queue = {"spec": {"clusterQueue": "only"}}
    stored = {"data": {queues.KUEUE_CONFIGURATION: "kind: Configuration"}}
    finding = queues.judge_kueue("research", "team", queue, [], "v1beta2", stored, "batch/job")
    check(finding, OK, "manages batch/job$")


TOLERANT = pod(tolerations=[{"operator": "Exists"}])
GROWS = (TOLERANT, "pods.gpus=1", "pods.workers=3", "pods.min_workers=2", "pods.max_workers=9")


@pytest.mark.parametrize(
    ("pairs", "status", "evidence", "remedy"),
    [
        ((), MISSING, "0 of 1 nodes admit", "tolerations"),
        ((TOLERANT,), OK, "1 of 1 nodes.*room for 8 pods", ""),
        ((pod(tolerations=[{"key": "gpu", "value": "yes"}], nodeSelector={"pool": "gpu"}),), OK, "room for 8", ""),
        ((pod(tolerations=[{"key": "gpu", "value": "no"}]),), MISSING, "0 of 1 nodes", "tolerations"),
        (
            (TOLERANT, "pods.cpu=16"),
            MISSING,
            "no node has 16 cpu: the maximum is 8",
            "request less",
        ),
        (
            (TOLERANT, "pods.gpus=8"),
            MISSING,
            "8 nvidia.com/gpu: the maximum is 2",
            "device plugin",
        ),
        (
            (TOLERANT, 'pods.rdma={"rdma/rdma_shared_device_a": 1}'),
            MISSING,
            "rdma_shared_device_a: the maximum is 0",
            "advertise nvid",
        ),
        ((TOLERANT, "pods.gpus=1", "pods.workers=3"), MISSING, "room for 2 of 3", "add nodes"),
        (
            (*GROWS, "pods.launcher=training-operator"),
            OK,
            "room for 2 pods if empty; .* begins with 2 and grows to 9",
            "",
        ),
        ((*GROWS, "pods.launcher=trainer"), OK, "room for 2 pods if empty; training begins with 2 and grows to 9", ""),
        ((*GROWS, "pods.launcher=job"), OK, "room for 2 pods if empty; training begins with 2 and grows to 9", ""),
        (
            (TOLERANT, "pods.host_network=true", "pods.workers=4", "pods.launcher=job"),
            MISSING,
            "1 of 1 nodes admit .*, one each because of pods.host_network, with room for 1 of 4 pods",
            "add nodes",
        ),
        ((*GROWS, "pods.min_workers=3"), MISSING, "room for 2 of 3", "add nodes"),
    ],
)
def test_nodes(pairs: tuple[str, ...], status: Status, evidence: str, remedy: str) -> None:
    nodes = [node(**{"nvidia.com/gpu": "2"})]
    check(capacity.judge_nodes(nodes, needs(*pairs).training, can_grow=False), status, evidence, remedy)
    if status is MISSING:
        grown = capacity.judge_nodes(nodes, needs(*pairs).training, can_grow=True)
        check(grown, WARNING, "the autoscaler must add nodes", "request less")


@pytest.mark.parametrize(
    ("effect", "tolerated", "admitted"),
    [
        ("NoExecute", "NoSchedule", 0),
        ("NoExecute", "NoExecute", 1),
        ("NoExecute", "", 1),
        ("PreferNoSchedule", "NoSchedule", 1),
    ],
)
def test_a_taint_that_repels_pods_admits_those_that_tolerate_its_effect(
    effect: str, tolerated: str, admitted: int
) -> None:
    tainted = {**node(), "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": effect}]}}
    pair = pod(tolerations=[{"operator": "Exists", "effect": tolerated}])
    found = capacity.judge_nodes([tainted], needs(pair).training, can_grow=False)
    check(found, OK if admitted else MISSING, f"{admitted} of 1 nodes admit")


def test_a_cordoned_node_does_not_count() -> None:
    cordoned = {**node(), "spec": {"unschedulable": True}}
    check(capacity.judge_nodes([cordoned], needs().training, can_grow=False), MISSING, "0 of 1 nodes")


@pytest.mark.parametrize(
    ("quotas", "status", "evidence", "remedy"),
    [
        ([], OK, "none in this namespace", ""),
        ([quota(requests_cpu="2100m", pods="3", requests_storage="200Gi")], OK, "room for the run", ""),
        ([quota(pods="2")], MISSING, "allows 2 pods.*run needs 3", '"pods": "3"'),
        ([quota(requests_cpu="2")], MISSING, "allows 2 requests.cpu.*run needs 2100m", '"requests.cpu": "2100m"'),
        ([quota({"memory": "4Gi"}, memory="10Gi")], WARNING, "of which 4Gi is used.*needs 8Gi", '"memory": "12Gi"'),
        ([quota({"memory": "4Gi"}, memory="10Gi", pods="2")], MISSING, "of which 4Gi is used.*allows 2 pods", "less"),
        ([quota(limits_memory="7Gi")], MISSING, "allows 7Gi limits.memory", "resourcequota q"),
        (
            [quota(persistentvolumeclaims="1")],
            MISSING,
            "allows 1 persistentvolumeclaims",
            '"persistentvolumeclaims": "2"',
        ),
        ([quota(count__pods="2")], MISSING, "allows 2 count/pods", '"count/pods": "3"'),
        ([quota(count__jobs_batch="0")], MISSING, "allows 0 count/jobs.batch", '"count/jobs.batch": "1"'),
        ([quota(requests_storage="100Gi")], MISSING, "needs 200Gi", '"requests.storage": "200Gi"'),
    ],
)
def test_quota(quotas: list[Manifest], status: Status, evidence: str, remedy: str) -> None:
    asked = needs()
    check(capacity.judge_quota(quotas, asked, asked.claims, "team"), status, evidence, remedy)


SELECTED = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}


@pytest.mark.parametrize("scopes", [{"scopes": ["NotBestEffort"]}, {"scopeSelector": SELECTED}])
def test_a_quota_with_scopes_is_a_warning_only_if_the_run_would_exceed_it(scopes: dict[str, Any]) -> None:
    small, large = quota(pods="0"), quota(pods="100")
    for each in (small, large):
        each["spec"] |= scopes
    check(capacity.judge_quota([small], needs(), [], "team"), WARNING, "q allows 0 pods in its scopes", '"pods": "3"')
    check(capacity.judge_quota([large], needs(), [], "team"), OK, "room for the run")
    check(
        capacity.judge_quota([small, quota(pods="2")], needs(), [], "team"), MISSING, "allows 2 pods, ", '"pods": "3"'
    )


def test_a_quota_for_pods_without_requests_is_ignored() -> None:
    some = quota(pods="0")
    some["spec"]["scopes"] = ["BestEffort"]
    check(capacity.judge_quota([some], needs(), [], "team"), OK, "room for the run")


def test_a_quota_without_limits_and_a_node_without_resources_are_judged() -> None:
    check(capacity.judge_quota([{"metadata": {"name": "q"}}], needs(), [], "team"), OK, "room for the run")
    check(capacity.judge_nodes([{"metadata": {}}], needs().training, can_grow=False), MISSING, "the maximum is 0")


def affinity(**terms: list[dict[str, Any]]) -> str:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [terms] if terms else []}}
    return pod(affinity={"nodeAffinity": required})


@pytest.mark.parametrize(
    ("key", "operator", "values", "is_met"),
    [
        ("pool", "In", ["cpu", "gpu"], True),
        ("pool", "In", ["cpu"], False),
        ("absent", "In", ["gpu"], False),
        ("pool", "NotIn", ["gpu"], False),
        ("absent", "NotIn", ["gpu"], True),
        ("pool", "Exists", None, True),
        ("absent", "Exists", None, False),
        ("absent", "DoesNotExist", None, True),
        ("pool", "DoesNotExist", None, False),
        ("size", "Gt", ["7"], True),
        ("size", "Gt", ["8"], False),
        ("size", "Lt", ["9"], True),
        ("size", "Lt", ["8"], False),
        ("pool", "Gt", ["1"], False),
    ],
)
def test_nodes_must_meet_the_required_node_affinity(
    key: str, operator: str, values: list[str] | None, is_met: bool
) -> None:
    nodes = [{**node(), "spec": {}, "metadata": {"labels": {"pool": "gpu", "size": "8"}}}]
    pair = affinity(matchExpressions=[{"key": key, "operator": operator, "values": values}])
    found = capacity.judge_nodes(nodes, needs(pair).training, can_grow=False)
    check(found, OK if is_met else MISSING, f"{int(is_met)} of 1 nodes admit", "" if is_met else "affinity")


def test_a_node_is_chosen_by_its_name_and_by_no_empty_term() -> None:
    nodes = [{**node(), "spec": {}, "metadata": {"name": name}} for name in ("a", "b")]
    named = affinity(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["b"]}])
    check(capacity.judge_nodes(nodes, needs(named).training, can_grow=False), OK, "1 of 2 nodes")
    check(capacity.judge_nodes(nodes, needs(affinity()).training, can_grow=False), MISSING, "0 of 2 nodes")


def test_rules_between_pods_are_named_because_they_are_not_judged() -> None:
    required = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}]
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    asked = needs(pod(affinity=apart, tolerations=[{"operator": "Exists"}]))
    check(
        capacity.judge_nodes([node()], asked.training, can_grow=False), WARNING, "podAntiAffinity may leave less room"
    )


@pytest.mark.parametrize(
    ("wanted", "classes", "status", "evidence", "remedy"),
    [
        ("", [storage_class("fast", is_default=True)], OK, "fast, the default, of csi", ""),
        ("fast", [storage_class("fast")], OK, "fast, of csi", ""),
        (
            "fsat",
            [storage_class("fast")],
            MISSING,
            r"storage class fsat does not exist \(existing: fast",
            "storage.class=fast",
        ),
        ("", [storage_class("fast")], MISSING, "no storage class is the default", "kubectl patch storageclass fast"),
        ("", [], MISSING, "the cluster has none", "administrator"),
    ],
)
def test_the_storage_class(wanted: str, classes: list[Manifest], status: Status, evidence: str, remedy: str) -> None:
    check(data.judge_storage_class(wanted, classes, is_needed=True), status, evidence, remedy)


def test_without_pvcs_to_create_no_storage_class_is_needed() -> None:
    check(data.judge_storage_class("", [], is_needed=False), OK, "not needed")


@pytest.mark.parametrize(
    ("modes", "phase", "status", "evidence"),
    [
        (["ReadWriteMany"], "Bound", OK, "ReadWriteMany, Bound"),
        (["ReadWriteOnce"], "Bound", WARNING, "pods on several nodes cannot write"),
        (["ReadOnlyMany"], "Pending", MISSING, "pods cannot write"),
        (["ReadWriteMany"], "Lost", MISSING, "is Lost"),
        (["ReadWriteOnce", "ReadWriteMany"], "Bound", OK, "exists: ReadWriteOnce, ReadWriteMany, Bound"),
    ],
)
def test_an_existing_pvc(modes: list[str], phase: str, status: Status, evidence: str) -> None:
    found = {"metadata": {"name": "kubetrain-output"}, "spec": {"accessModes": modes}, "status": {"phase": phase}}
    check(data.judge_claim(Storage().wanted_output, found, "team"), status, evidence)


def test_a_missing_pvc_is_created() -> None:
    check(data.judge_claim(Storage().wanted_output, None, "team"), OK, "will be created: 100Gi, ReadWriteMany")


def test_disks_of_one_node_lead_to_the_bucket() -> None:
    disks, files = (
        [{"metadata": {"name": "a", "annotations": {data.DEFAULT_CLASS: "true"}}, "provisioner": driver}]
        for driver in ("ebs.csi.aws.com", "nfs.csi.k8s.io")
    )
    finding = data.judge_claim(Storage().wanted_output, None, "team", disks)
    check(finding, MISSING, "ebs.csi.aws.com gives disks", "storage.output=s3://BUCKET/PREFIX")
    check(data.judge_claim(Storage().staging, None, "team", disks), OK, "will be created")
    check(data.judge_claim(Storage().wanted_output, None, "team", files), OK, "will be created")


@pytest.mark.parametrize(
    ("exposure", "provisioner", "status", "evidence", "remedy"),
    [
        ("auto", "pd.csi.storage.gke.io", OK, "by clone", ""),
        (
            "auto",
            "ebs.csi.aws.com",
            MISSING,
            "cannot mount files ReadOnlyMany",
            "^use a ReadWriteMany staging PVC",
        ),
        ("clone", "ebs.csi.aws.com", MISSING, "cannot mount files ReadOnlyMany", "static"),
        ("shared", "ebs.csi.aws.com", OK, "by shared", ""),
    ],
)
def test_the_exposure(exposure: str, provisioner: str, status: Status, evidence: str, remedy: str) -> None:
    storage = Storage(exposure=exposure)
    facts = StorageFacts.read(storage.staging.manifest(), storage_class("x", provisioner))
    check(data.judge_exposure(storage.exposure_of("s3://bucket/digits"), facts), status, evidence, remedy)


@pytest.mark.parametrize(
    ("needed", "keys", "status", "evidence"),
    [
        (NeededSecret(frozenset({"token"})), {"token", "more"}, OK, "hub has token"),
        (NeededSecret(frozenset({"token"})), {"other"}, MISSING, "has no token"),
        (NeededSecret(frozenset({"token"})), None, MISSING, "secret hub does not exist in team"),
        (NeededSecret(is_optional=True), None, WARNING, "it is optional"),
        (NeededSecret(pulls_images=True), None, MISSING, "secret hub does not exist"),
        (NeededSecret(pulls_images=True), {".dockerconfigjson"}, OK, "has .dockerconfigjson"),
    ],
)
def test_a_secret(needed: NeededSecret, keys: set[str] | None, status: Status, evidence: str) -> None:
    check(data.judge_secret("hub", needed, keys, "team"), status, evidence)


@pytest.mark.parametrize(
    ("keys", "s3", "status"),
    [
        (REQUIRED_VARIABLES, OK, OK),
        ({"AWS_ACCESS_KEY_ID"}, SKIPPED, MISSING),
        (None, OK, OK),
        (None, MISSING, MISSING),
        (None, SKIPPED, WARNING),
        (None, UNKNOWN, WARNING),
    ],
)
def test_the_secret_for_s3_may_be_missing_if_s3_answers(keys: Any, s3: Status, status: Status) -> None:
    finding = data.judge_s3_secret("kubetrain-s3", keys, "team", s3)
    assert finding.status is status
    if status in (MISSING, WARNING):
        assert '--from-literal=AWS_SECRET_ACCESS_KEY="${AWS_SECRET_ACCESS_KEY}"' in finding.remedy


@pytest.mark.parametrize(
    ("message", "evidence", "remedy"),
    [
        ('pods "x" is forbidden: violates PodSecurity "restricted:latest": host', "violates", "enforce=privileged"),
        (
            'error looking up service account team/a: serviceaccount "a" not found',
            "a",
            "-n team create serviceaccount a",
        ),
        ("no PriorityClass with name high was found", "high", "create priorityclass high"),
        ("failed quota: q: must specify limits.cpu for: main", "must specify", "limits.cpu.*set limits of main in pod"),
        ("failed quota: q: must specify limits.ephemeral-storage for: main", "must specify", "a LimitRange with"),
        ("[maximum cpu usage per Container is 1, but limit is 4]", "maximum", "--set pods.cpu=.*edit limitrange"),
        ("admission webhook denied the request: no", "denied", "correct what the message names"),
    ],
)
def test_a_pod_that_is_refused(message: str, evidence: str, remedy: str) -> None:
    check(
        admission.judge_refusal(f"the API server rejects POST /api/v1/pods: {message}", "team"),
        MISSING,
        evidence,
        remedy,
    )


def test_the_launch_steps_own_pod() -> None:
    def created(**resources: Any) -> Manifest:
        return {"spec": {"containers": [{"name": "main", "resources": resources}]}}

    requested = created(requests={"memory": "512Mi"})
    check(admission.judge_launch_step(requested, "team"), OK, "memory request of 512Mi")
    check(admission.judge_launch_step(created(), "team"), WARNING, "has no memory request", "kind: LimitRange")
    for specified, defaults in (("requests.memory", {"defaultRequest"}), ("limits.cpu", {"defaultRequest", "default"})):
        refusal = missing(f"failed quota: q: must specify {specified} for: main", "--set something of training pods")
        finding = admission.judge_refused_launch_step(refusal, "team")
        check(finding, MISSING, "must specify", "kubectl -n team apply")
        manifest = yaml.safe_load(finding.remedy.split("<<'EOF'\n")[1].removesuffix("EOF"))
        assert set(manifest["spec"]["limits"][0]) == {"type", *defaults}
    other = missing("violates PodSecurity", "another remedy")
    assert admission.judge_refused_launch_step(other, "team") == other


def three_probes() -> probes.Probes:
    claim = probes.probe_claim(Storage().staging, "0a")
    return probes.Probes(
        claims=(claim,),
        exposure=None,
        step=probes.step_job("0a", Placement(image="steps:1"), {}),
        writer=probes.writer_job("0a", Placement(image="components:1"), [claim], {}),
        reader=probes.reader_job("0a", Placement(image="trainer:1", gpus=8), "doctor-staging-0a", is_ours=True),
    )


def judged(step: probes.Outcome, writer: probes.Outcome, reader: probes.Outcome) -> dict[str, tuple[Status, str]]:
    tried = replace(three_probes(), stores=["dataset", "model"])
    found = judge_outcomes(tried, probes.Outcomes(step, writer, reader))
    return {each.check: (each.status, each.evidence) for each in found}


def test_the_reports_of_pods() -> None:
    found = judged(
        {"model": "warning: it stays"}, {"write": "writes", "dataset": "error: access denied"}, {"read_only": "EROFS"}
    )
    assert {name: status for name, (status, _) in found.items()} == {
        "step image": OK,
        "S3 model": WARNING,
        "components image": OK,
        "write": OK,
        "S3 dataset": MISSING,
        "trainer image": OK,
        "read-only mount": OK,
    }
    assert (found["S3 dataset"][1], found["S3 model"][1]) == ("access denied", "it stays")


@pytest.mark.parametrize(
    ("task", "status"),
    [
        ({"task": "'own:build' can be imported"}, OK),
        ({"task": "warning: importing 'own:build' without GPU and dataset raised RuntimeError: no GPU"}, WARNING),
        ({"task": "error: cannot import 'own' of 'own:build'"}, MISSING),
        (KubetrainError("not tried"), UNKNOWN),
    ],
)
def test_a_task_of_your_own_is_imported(task: probes.Outcome, status: Status) -> None:
    job = probes.task_job(
        "0a",
        RunParameters(
            dataset_uri="s3://bucket/data",
            model_uri="s3://bucket/models",
            framework="pytorch",
            train_config=TrainConfig(model="own:build"),
            placement=Placement(image="trainer:1", gpus=8),
        ),
    )
    tried = replace(three_probes(), task=job)
    found = {each.check: each for each in judge_outcomes(tried, probes.Outcomes({}, {}, {}, task))}
    assert found["own code"].status is status


def test_an_image_that_cannot_be_pulled_leaves_the_rest_unknown() -> None:
    not_found = JobFailed("read failed: probe-0: trainer:1 not found", trouble=TroubleKind.IMAGE_PULL)
    found = judged(not_found, {"write": "writes", "dataset": "lists"}, not_found)
    assert found["components image"] == (OK, "components:1 starts in a pod")
    assert [found[name][0] for name in ("step image", "trainer image")] == [MISSING, MISSING]
    assert [found[name][0] for name in ("S3 model", "read-only mount")] == [UNKNOWN, UNKNOWN]


def test_a_pod_that_does_not_start_leaves_its_image_unknown() -> None:
    unbound = JobFailed("write failed: probe-0: its image is ready, its volume unbound", trouble=TroubleKind.VOLUME)
    found = judged({"model": "fine"}, unbound, KubetrainError("not tried"))
    assert [found[name][0] for name in ("components image", "write")] == [UNKNOWN, MISSING]
    assert [found[name][0] for name in ("trainer image", "read-only mount")] == [UNKNOWN, UNKNOWN]


def test_probes_request_no_device_and_join_no_queue() -> None:
    placement = three_probes().reader.placement
    assert (placement.gpus, placement.scheduler, placement.image) == (0, "", "trainer:1")


def run_in_pod(tmp_path: Path, tests: dict[str, list[str]], flag: str = "-I") -> dict[str, str]:
    """Run the program of the pods, with a file here as its termination log, and return its report.

    Args:
        flag: A flag of Python; -I isolates it from this checkout.
    """
    log = tmp_path / "log"
    program = probes.PROGRAM.read_text().replace("/dev/termination-log", str(log))
    subprocess.run([sys.executable, flag, "-c", program, json.dumps(tests)], check=True)
    return dict(json.loads(log.read_text())["seen"])


def test_a_mount_that_can_be_written_is_not_read_only(tmp_path: Path) -> None:
    seen = run_in_pod(tmp_path, {"write": [str(tmp_path)], "read_only": [str(tmp_path), "mark"]})
    assert seen["write"].startswith("user ")
    assert seen["read_only"] == "error: a pod can write to a read-only mount"
    (tmp_path / "static").mkdir()
    seen = run_in_pod(tmp_path, {"read_only": [str(tmp_path / "static"), ""]})
    assert seen["read_only"] == "error: a pod can write to a read-only mount", "nobody left a mark in a PVC of yours"
    seen = run_in_pod(tmp_path, {"read_only": [str(tmp_path / "missing"), ""]})
    assert "No such file" in seen["read_only"], "another failure to write does not prove that the mount is read-only"


class TestS3:
    """The tests of S3 as a pod makes them, in a process of its own."""

    @pytest.fixture
    def s3(self) -> FaultyS3:
        return FaultyS3()

    @pytest.fixture
    def seen(self, s3: FaultyS3, tmp_path: Path, s3_credentials: None) -> Iterator[Any]:
        with s3.serving() as url:

            def run(test: str) -> str:
                arguments = {
                    "dataset": ["s3://bucket/data", url, "credentials", "image_folder"],
                    "model": ["s3://bucket/models", url],
                    "output": ["s3://bucket/outputs", url],
                }
                return run_in_pod(tmp_path, {test: arguments[test]}, "-u")[test]

            yield run

    def test_what_can_be_listed_but_not_read_is_an_error(self, s3: FaultyS3, seen: Any) -> None:
        s3.put("data/", b"")
        s3.put("data/image.png", b"png")
        assert seen("dataset") == "a pod can list s3://bucket/data and read image.png"
        s3.fail("data/image.png", refused(403, "AccessDenied"), times=9)
        assert seen("dataset").startswith("error: ")
        assert "AccessDenied" in seen("dataset")

    @pytest.mark.parametrize(
        ("images", "data", "status"),
        [(3, "image_folder", OK), (4, "image_folder", WARNING), (4, "tar_shards", OK)],
    )
    def test_shards_are_recommended_for_too_many_images(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: int, data: str, status: Status
    ) -> None:
        monkeypatch.setattr("kubetrain_trainer.data.image_folder.MAX_FILES", 3)
        for number in range(images):
            (tmp_path / f"{number}.png").write_text("png")
        seen: dict[str, str] = {}
        pod_program.report("dataset", [str(tmp_path), "", "credentials", data], seen)
        found = judge_outcomes(replace(three_probes(), stores=["dataset"]), probes.Outcomes({}, seen, {}))
        [judged] = [each for each in found if each.check == "S3 dataset"]
        assert judged.status is status
        assert ("kubetrain pack" in judged.remedy) == (status is WARNING)

    def test_a_store_without_conditional_writes_is_an_error(self, s3: FaultyS3, seen: Any) -> None:
        assert seen("model") == "a pod can write to s3://bucket/models, also on a condition"
        assert s3.objects == {}
        s3.fail("put", refused(501, "NotImplemented"), times=9)
        assert re.search("^error: .*NotImplemented", seen("model"))

    def test_what_can_be_written_but_not_deleted_is_a_note(self, s3: FaultyS3, seen: Any) -> None:
        s3.fail("delete", refused(403, "AccessDenied"), times=9)
        assert re.search(r"^warning: \.kubetrain-probe-\w+ stays in s3://bucket/models", seen("model"))
        assert re.search(r"^error: \.kubetrain-probe-\w+ stays in s3://bucket/outputs", seen("output"))

    def test_the_store_of_the_output_is_written_read_listed_and_deleted_in(self, s3: FaultyS3, seen: Any) -> None:
        assert seen("output").startswith("a pod can write to s3://bucket/outputs, also on a condition")
        assert s3.objects == {}
        s3.fail("list", refused(403, "AccessDenied"), times=9)
        assert re.search("^error: .*AccessDenied", seen("output"))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in run_in_pod(tmp_path, {"write": [str(tmp_path / "gone")]})["write"]


@pytest.mark.parametrize(
    ("findings", "code", "summary"),
    [
        ([ok("a"), skipped("b"), warning("c")], 0, "nothing is missing, 1 warning, 1 skipped"),
        ([ok("a"), unknown("b"), warning("c"), warning("d")], 3, "nothing is missing, 2 warnings, 1 unknown"),
        ([unknown("a"), missing("b", "c")], 1, "1 missing, 1 unknown"),
    ],
)
def test_the_command_succeeds_only_if_it_could_check_everything(
    findings: list[Finding], code: int, summary: str
) -> None:
    assert doctor_command.exit_code(findings) == code
    assert doctor_command.summary(findings) == summary


def test_remedies_are_printed_unwrapped_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    long = "kubectl " + "--set x=[bold]y " * 20
    findings = [Finding(MISSING, "no [red]rights[/]", long, "rights"), Finding(OK, "there", "", "account")]
    doctor_command.show(findings, Console(width=60))
    shown = capsys.readouterr().out
    assert "missing  rights   no [red]rights[/]\nok       account  there\n" in shown
    assert f"\nrights (missing):\n{long}\n" in shown


def test_the_table_on_a_terminal_has_marks(capsys: pytest.CaptureFixture[str]) -> None:
    doctor_command.show([Finding(OK, "there", "", "account")], Console(force_terminal=True, width=60))
    assert "✓" in capsys.readouterr().out


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


def examine(pairs: Sequence[str] = (), **changes: Any) -> dict[str, Finding]:
    api = KubernetesApi.connect(retry_seconds=0.2)
    examination = Examination(api=api, parameters=planned(*pairs), say=print, **changes)
    return {each.check: each for each in examination.findings()}


def test_a_permission_that_we_lack_makes_one_finding_unknown(server: ApiServer) -> None:
    server.put("/version", gitVersion="v1.34.4")
    for request, may_not in (("/nodes", 'list resource "nodes"'), ("POST ", 'create resource "reviews"')):
        server.fail(request, answer(403, f'User "bob" cannot {may_not} at the cluster scope'), times=99)
    found = examine(with_pods=False)
    check(found["nodes"], UNKNOWN, "bob may not list nodes in the whole cluster")
    check(found["permissions: launch"], UNKNOWN, "bob may not create reviews in the whole cluster")
    check(found["admission: launch_training pod"], UNKNOWN, "bob may not create")
    assert found["storage class"].status is MISSING
    assert found["launcher"].status is OK


def test_an_odd_object_makes_one_finding_unknown(server: ApiServer) -> None:
    server.put("/version", gitVersion="v1.34.4")
    server.fail("POST ", answer(403, 'User "bob" cannot create resource "reviews" at the cluster scope'), times=99)
    server.put("/api/v1/nodes", items=[{"metadata": {"name": "n"}, "spec": "odd"}])
    found = examine(with_pods=False)
    check(found["nodes"], UNKNOWN, "failed unexpectedly: AttributeError: 'str'")
    assert found["storage class"].status is MISSING


def serve(server: ApiServer, *names: str) -> None:
    """Serve these API groups, and no account may ask for the permissions of others."""
    server.put("/version", gitVersion="v1.34.4")
    server.fail("POST ", answer(403, 'User "bob" cannot create resource "reviews" at the cluster scope'), times=99)
    served = [{"name": name, "preferredVersion": {"version": "v1"}} for name in names]
    server.put("/apis", groups=served, metadata={})


def test_a_cluster_without_an_operator_is_fine(server: ApiServer) -> None:
    serve(server)
    found = examine(with_pods=False)
    check(found["launcher"], OK, "^job runs this training .the cluster has no PyTorchJob and no TrainJob")
    assert not {"training operator", "init container", "trainer"} & found.keys()
    assert "admission: launch_training pod" in found
    check(found["queue"], SKIPPED, "launcher job has no queue but Kueue's")


def test_a_cluster_with_trainer_only_is_fine(server: ApiServer) -> None:
    serve(server, "trainer.kubeflow.org", "jobset.x-k8s.io")
    server.put("/apis/trainer.kubeflow.org/v1alpha1", resources=[{"name": "trainjobs"}])
    server.put("/openapi/v3/apis/trainer.kubeflow.org/v1alpha1", **described(*NEW))
    server.put("/apis/apps/v1/deployments", items=[trainer()])
    found = examine(with_pods=False)
    check(found["launcher"], OK, "^trainer runs this training .the cluster has TrainJob and no PyTorchJob")
    check(found["trainer"], OK, "v2.3.0 is running")
    assert not {"training operator", "init container"} & found.keys()
    check(examine(with_pods=False, pairs=["pods.launcher=training-operator"])["launcher"], MISSING, "no PyTorchJob")


def test_a_cluster_with_the_training_operator_is_examined_for_it(server: ApiServer) -> None:
    serve(server, "kubeflow.org")
    server.put("/apis/kubeflow.org/v1", resources=[{"name": "pytorchjobs"}])
    found = examine(with_pods=False)
    check(found["launcher"], OK, "^training-operator runs this training .the cluster has PyTorchJob")
    check(found["training operator"], MISSING, "is not deployed", "or --set pods.launcher=job")
    assert "admission: launch_training master" in found


@pytest.mark.parametrize("launcher", ["auto", "job"])
def test_settings_that_only_another_launcher_has_are_missing(server: ApiServer, launcher: str) -> None:
    serve(server)
    found = examine(with_pods=False, pairs=["pods.scheduler=volcano", f"pods.launcher={launcher}"])
    check(found["launcher"], MISSING, "job .*: .*volcano does not start a Job as a gang")
    assert "nodes" in found


@pytest.mark.parametrize(("groups", "status"), [(["kueue.x-k8s.io"], WARNING), ([], OK)])
def test_a_queue_that_would_take_the_etcd_of_a_training_is_a_warning(
    server: ApiServer, groups: list[str], status: Status
) -> None:
    serve(server, *groups)
    server.put("/apis/kueue.x-k8s.io/v1/namespaces/tests/localqueues/default")
    found = examine(
        with_pods=False, pairs=["pods.workers=3", "pods.min_workers=2", 'pods.rendezvous={"backend": "etcd-v2"}']
    )
    check(found["etcd queue"], status, "LocalQueue default", "endpoint of pods.rendezvous" if status is WARNING else "")
    assert "etcd queue" not in examine(with_pods=False)


def test_an_unreachable_server_is_not_asked_again(server: ApiServer) -> None:
    server.put("/version", gitVersion="v1.34.4")
    server.fail("/apis", answer(503, "not now"), times=99)
    found = examine()
    asked = len(server.requests)
    check(found["launcher"], UNKNOWN, "not now")
    check(found["pods"], UNKNOWN, "not checked: the API server does not answer")
    assert asked < 10, server.requests


def run_doctor(**asked: Any) -> int:
    return doctor_command.examine_and_show(DoctorOptions(asked=AskedRun(**asked), no_pods=True, as_json=True))


def test_a_missing_cluster_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert run_doctor() == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"]
    assert [(each["check"], each["verdict"]) for each in report["findings"]] == [("cluster", "missing")]


def test_an_unknown_setting_is_bad_usage() -> None:
    with pytest.raises(InvalidSetting, match=r"no setting 'pods\.gpu': did you mean 'pods\.gpus'"):
        run_doctor(pairs=("pods.gpu=1",))


def test_the_run_of_a_file_is_examined(server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.put("/version", gitVersion="v1.34.4")
    file = tmp_path / "nightly.yaml"
    file.write_text("data:\n  secret: of-s3\npods:\n  pod:\n    spec:\n      imagePullSecrets: [{name: of-images}]\n")
    run_doctor(source=str(file), pairs=("data.secret=of-team",))
    checks = {each["check"] for each in json.loads(capsys.readouterr().out)["findings"]}
    assert {check for check in checks if "secret" in check} == {"secret of-team", "secret of-images"}


def test_an_endpoint_that_does_not_answer(server: ApiServer) -> None:
    cluster = Cluster(KubernetesApi.connect())
    nowhere = Connection(endpoint="http://127.0.0.1:1")
    check(check_pipelines(cluster, nowhere), MISSING, "refused", "port-forward service/ml-pipeline")


@pytest.mark.parametrize(
    ("fault", "status", "evidence"),
    [
        (answer(401, "log in"), UNKNOWN, r"authentication failed .*\(401: log in\): pass a token"),
        (answer(500, "broken"), MISSING, "status 500"),
        (hang(600), MISSING, "timed out"),
    ],
)
def test_an_endpoint_that_fails(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, fault: Any, status: Status, evidence: str
) -> None:
    if "timed out" in evidence:
        monkeypatch.setattr("kubetrain_pipelines.doctor.pipelines_api.TIMEOUT_SECONDS", 0.2)
    server.fail("/apis/v2beta1/healthz", fault, times=2)
    api = KubernetesApi.connect()
    check(check_pipelines(Cluster(api), Connection(endpoint=api._host)), status, evidence)


def test_the_version_is_read_with_the_login_of_submit(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("our-token")
    with KfpServer() as pipelines:
        pipelines.token = "our-token"
        monkeypatch.setenv("KUBETRAIN_KFP_ENDPOINT", pipelines.endpoint)
        connection = DoctorOptions(token_file=token).connection()
        check(check_pipelines(Cluster(KubernetesApi.connect()), connection), OK, "version 2.17.0, single-user")
