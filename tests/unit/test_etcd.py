"""A rendezvous through etcd: what the manifests say, what is created and deleted with a job, and what is refused."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes import companions, watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.errors import Forbidden, KubernetesError
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import (
    companion_manifest,
    job_manifest,
    manifests_of,
    own_etcd_manifest,
)
from kubetrain_components.jobs.kubernetes.reaper import main as reap
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.manifest import Manifest
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.doctor import permissions, pod_program, probes
from kubetrain_pipelines.doctor.finding import Status
from kubetrain_pipelines.doctor.judge_probes import judge_outcomes
from kubetrain_pipelines.doctor.needs import Needs
from kubetrain_pipelines.doctor.plan_probes import etcd_test
from kubetrain_trainer.errors import InvalidSetting
from support.api_server import ApiServer, answer, stamp
from support.manifests import PLAIN, elastic, indexed, pytorch, tensorflow
from support.planned import planned

OWN = replace(PLAIN, rendezvous={"backend": "etcd-v2"})
YOURS = replace(PLAIN, rendezvous={"backend": "etcd-v2", "endpoint": "https://etcd.infra:2380"})
KINDS: dict[JobKind, dict[str, Any]] = {
    JobKind.PYTORCH_JOB: {},
    JobKind.TRAIN_JOB: {"kind": JobKind.TRAIN_JOB, "framework": "pytorch"},
    JobKind.BATCH_JOB: {"kind": JobKind.BATCH_JOB, "framework": "pytorch"},
}
RUN = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "run", "uid": "run"}
NAMESPACE = "/namespaces/tests/"


def job_of(kind: JobKind, placement: Placement = OWN) -> Job:
    return elastic(placement, **KINDS[kind])


def rendezvous(manifests: list[Manifest]) -> dict[str, str]:
    """Return what the pods of a training get, as torchrun calls it."""
    *companions, job = manifests
    if job["kind"] == "PyTorchJob":
        policy = job["spec"]["elasticPolicy"]
        conf = ",".join(f"{each['key']}={each['value']}" for each in policy["rdzvConf"])
        endpoint = f"{policy.get('rdzvHost', '')}:{policy['rdzvPort']}"
        return {"backend": policy["rdzvBackend"], "endpoint": endpoint, "id": policy["rdzvId"], "conf": conf}
    template = job["spec"].get("template")
    if template is None:
        (runtime,) = (each for each in companions if each["kind"] == "TrainingRuntime")
        (nodes,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
        template = nodes["template"]["spec"]["template"]
    prefix = "PET_RDZV_"
    env = {each["name"]: each.get("value", "") for each in template["spec"]["containers"][0]["env"]}
    return {name.removeprefix(prefix).lower(): value for name, value in env.items() if name.startswith(prefix)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_of_each_kind_meet_in_the_etcd_of_their_job(kind: JobKind) -> None:
    manifests = manifests_of(job_of(kind))
    (service,) = (
        each for each in manifests if each["metadata"]["name"].endswith("-etcd") and each["kind"] == "Service"
    )
    seen = rendezvous(manifests)
    assert seen["backend"] == "etcd-v2"
    assert seen["endpoint"] == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert seen["conf"].split(",")[-1] == "protocol=http"
    assert seen["id"] == f"{manifests[-1]['metadata']['name']}-00000000"


@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_of_each_kind_meet_in_your_etcd_and_none_is_created(kind: JobKind) -> None:
    manifests = manifests_of(job_of(kind, YOURS))
    seen = rendezvous(manifests)
    assert (seen["endpoint"], seen["conf"].split(",")[-1]) == ("etcd.infra:2380", "protocol=https")
    assert not any(each["metadata"]["name"].endswith("-etcd") for each in manifests)


@pytest.mark.parametrize("kind", KINDS)
def test_each_creation_and_each_attempt_has_a_rendezvous_of_its_own(kind: JobKind) -> None:
    """Etcd keeps one for two hours after its last change."""
    job = job_of(kind, YOURS)
    later = replace(job, identity=job.identity.next_attempt())

    def seen(job: Job, instance: str) -> str:
        companion = companion_manifest(job, None, instance)
        return rendezvous([*([companion] if companion else []), job_manifest(job, instance=instance)])["id"]

    assert len({seen(job, "0a"), seen(job, "0b"), seen(later, "0a")}) == 3
    assert job.spec_hash == later.spec_hash


def test_c10d_stays_the_default_and_its_manifests_as_they_were() -> None:
    assert Placement().rdzv_backend == "c10d"
    assert [each["kind"] for each in manifests_of(elastic())] == ["PyTorchJob"]
    assert "rdzvHost" not in job_manifest(elastic())["spec"]["elasticPolicy"]


def test_the_etcd_serves_the_old_api_and_its_pod_passes_restricted() -> None:
    server = replace(
        OWN,
        rendezvous={"backend": "etcd-v2", "image": "registry/etcd:v3.4.37"},
        gpus=8,
        user=1000,
        pod=pod_patch({"imagePullSecrets": [{"name": "r"}]}, labels={"team": "a"}),
    )
    etcd, service, _ = manifests_of(elastic(server))
    template = etcd["spec"]["template"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    assert container["image"] == "registry/etcd:v3.4.37"
    assert "--enable-v2" in container["command"]
    assert f"--advertise-client-urls=http://{service['metadata']['name']}:2379" in container["command"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    assert volume == {"name": mount["name"], "emptyDir": {"sizeLimit": "4Gi"}}
    assert f"--data-dir={mount['mountPath']}/data" in container["command"]
    assert container["resources"] == {"requests": {"cpu": "100m", "memory": "288Mi"}, "limits": {"memory": "288Mi"}}
    assert pod["automountServiceAccountToken"] is False
    assert pod["imagePullSecrets"] == [{"name": "r"}]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert template["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    assert pod["restartPolicy"] == "OnFailure", "its data stays while it restarts"


def test_the_etcd_counts_neither_as_the_training_nor_as_a_use_of_its_dataset() -> None:
    etcd, service, job = manifests_of(elastic(OWN))
    of_training = {name: job["metadata"]["labels"][f"kubetrain/{name}"] for name in ("stage", "dataset")}
    assert of_training == {"stage": "launch-training", "dataset": "0123456789abcdef"}
    for each in (etcd["metadata"], etcd["spec"]["template"]["metadata"], service["metadata"]):
        assert each["labels"]["kubetrain/run-id"] == job["metadata"]["labels"]["kubetrain/run-id"]
        assert each["labels"]["kubetrain/stage"] == "etcd"
        assert "kubetrain/dataset" not in each["labels"]


def test_long_names_fit_into_a_service() -> None:
    job = job_of(JobKind.PYTORCH_JOB)
    identity = replace(job.identity, pipeline="p" * 20, stage="s" * 20, run_id="run-1", attempt=123)
    assert all(len(each["metadata"]["name"]) <= 63 for each in manifests_of(replace(job, identity=identity)))


SECRET = {
    "pod": pod_patch(
        {"volumes": [{"name": "tls", "secret": {"secretName": "etcd-tls"}}, {"name": "shared", "emptyDir": {}}]},
        {"volumeMounts": [{"name": "tls", "mountPath": "/tls"}, {"name": "shared", "mountPath": "/tls/shared"}]},
    )
}
CERTIFICATE = {"ca_cert": "/etc/ca.crt", "ssl_cert": "/tls/tls.crt", "ssl_cert_key": "/tls/tls.key"}
ETCD = {"backend": "etcd-v2"}
TLS = {**ETCD, "endpoint": "https://etcd.infra:2379"}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"backend": "etcd"}, "cannot be .etcd.: did you mean .etcd-v2"),
        ({"endpoint": "etcd:2379"}, "no effect: set backend to etcd-v2"),
        ({**TLS, "endpoint": "etcd:99999"}, "must be HOST:PORT.*etcd:99999"),
        ({**TLS, "endpoint": "http://etcd/v2"}, "must be HOST:PORT"),
        ({**TLS, "endpoint": "[fd00::1]:2379"}, "must be HOST:PORT"),
        ({**TLS, "endpoint": "etcd-0:2379,etcd-1:2379"}, "one address"),
        ({**ETCD, "image": ""}, "pods.rendezvous.image is empty"),
        ({"join_timeout": "15m"}, "join_timeout must be a whole number above 0, not '15m'"),
        ({"keep_alive_interval": 0}, "keep_alive_interval must be a whole number above 0"),
        ({**TLS, "ssl_cert": "/tls/../output/key"}, "absolute path, without .."),
        ({**TLS, "protocol": "https"}, "must not set protocol"),
        ({**TLS, "endpoint": "etcd:1", **CERTIFICATE}, "ca_cert has no effect without TLS"),
        ({**TLS, "ca_cert": "ca.crt"}, "ca_cert must be the absolute path"),
        ({**TLS, **CERTIFICATE, "ssl_cert": "/opt/tls.crt"}, "'/opt/tls.crt' is not in a mounted secret"),
        ({**TLS, "ssl_cert": "/tls/shared/tls.pem"}, "is not in a mounted secret"),
        ({**TLS, "ssl_cert_key": "/tls/tls.key"}, "no effect without ssl_cert"),
    ],
)
def test_options_that_would_not_work_are_refused(options: dict[str, Any], cause: str) -> None:
    with pytest.raises(InvalidSetting, match=cause):
        Placement(image="i", rendezvous=options, **SECRET)


@pytest.mark.parametrize("backend", ["etcd-v2", "c10d"])
def test_a_password_in_the_endpoint_is_refused_without_being_shown(backend: str) -> None:
    with pytest.raises(InvalidSetting, match="without user, password") as refused:
        Placement(rendezvous={"backend": backend, "endpoint": "http://root:hunter2@etcd:2379"})
    assert "hunter2" not in str(refused.value)


def test_certificates_of_a_mounted_secret_are_accepted() -> None:
    Placement(rendezvous={**TLS, **CERTIFICATE}, **SECRET)


STATIC = [
    (pytorch(), "set pods.min_workers, or "),
    (tensorflow(), ""),
    (indexed(), "set pods.min_workers, or "),
    (indexed(framework="tensorflow"), ""),
]


@pytest.mark.parametrize("options", [{"backend": "etcd-v2"}, {"join_timeout": 900}])
@pytest.mark.parametrize(("job", "remedy"), STATIC, ids=lambda value: getattr(value, "kind", ""))
def test_a_rendezvous_for_a_job_that_is_not_elastic_is_refused(job: Job, remedy: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match=f"applies only to elastic jobs.*: {remedy}remove it$"):
        job_manifest(replace(job, placement=replace(job.placement, rendezvous=options)))


@pytest.fixture
def backend(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesBackend]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.1)
    with KubernetesBackend(KubernetesApi.connect()) as backend:
        yield backend


def etcds(server: ApiServer) -> list[Manifest]:
    return [each for path, each in server.objects.items() if path.endswith("-etcd") and "/jobs/" in path]


@pytest.mark.parametrize("kind", KINDS)
def test_an_etcd_belongs_to_its_job_and_its_service_to_it(
    kind: JobKind, server: ApiServer, backend: KubernetesBackend
) -> None:
    handle = backend.create(job_of(kind))
    (etcd,) = etcds(server)
    assert [(each["kind"], each["uid"]) for each in etcd["metadata"]["ownerReferences"]] == [(kind, handle.uid)]
    name = etcd["metadata"]["name"]
    service = server.objects[f"/api/v1{NAMESPACE}services/{name}"]
    assert service["metadata"]["ownerReferences"][0]["uid"] == etcd["metadata"]["uid"]
    created = server.objects[f"/apis/{kind.traits.api_version}{NAMESPACE}{kind.traits.plural}/{handle.name}"]
    instance = created["metadata"]["labels"]["kubetrain/etcd"]
    assert name == f"{handle.name}-{instance}-etcd"
    if kind is not JobKind.TRAIN_JOB:
        assert rendezvous([created])["endpoint"] == f"{name}:2379"


def test_an_etcd_that_its_job_does_not_own_yet_is_handed_over_when_the_launcher_leaves(
    server: ApiServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(backend, "_run", SimpleNamespace(owner=RUN))
    server.fail("PATCH /apis/batch/v1/namespaces/tests/jobs/", answer(503, "no leader", Retry_After="1"))
    handle = backend.create(job_of(JobKind.PYTORCH_JOB))
    assert [each["metadata"]["ownerReferences"] for each in etcds(server)] == [[RUN]]
    backend.leave(handle)
    (etcd,) = etcds(server)
    assert [each["uid"] for each in etcd["metadata"]["ownerReferences"]] == [handle.uid]


def test_the_etcd_of_a_job_that_could_not_be_created_is_deleted(server: ApiServer, backend: KubernetesBackend) -> None:
    server.fail("POST /apis/kubeflow.org", answer(422, "PyTorchJob is invalid"))
    with pytest.raises(KubernetesError, match="invalid"):
        backend.create(job_of(JobKind.PYTORCH_JOB))
    assert etcds(server) == []


def test_no_job_is_created_if_its_etcd_may_not_be(server: ApiServer, backend: KubernetesBackend) -> None:
    server.fail("tests/services", answer(403, 'User "runner" cannot create resource "services" in API group ""'))
    with pytest.raises(Forbidden, match="may not create services"):
        backend.create(job_of(JobKind.PYTORCH_JOB))
    assert not any("/pytorchjobs/" in path for path in server.objects)
    assert etcds(server) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("waiting", "cause"),
    [("ImagePullBackOff", "its image cannot be pulled"), ("CrashLoopBackOff", "it keeps crashing")],
)
def test_the_launcher_names_what_keeps_the_etcd_from_starting(
    waiting: str, cause: str, server: ApiServer, backend: KubernetesBackend
) -> None:
    handle = backend.create(job_of(JobKind.BATCH_JOB))
    (etcd,) = etcds(server)
    labels = {
        **etcd["spec"]["template"]["metadata"]["labels"],
        "batch.kubernetes.io/job-name": etcd["metadata"]["name"],
    }
    container = {"name": "main", "image": OWN.etcd_image, "state": {"waiting": {"reason": waiting, "message": "no"}}}
    status = {"phase": "Pending", "containerStatuses": [container]}
    server.put(
        f"/api/v1{NAMESPACE}pods/etcd",
        metadata={"labels": labels},
        spec=etcd["spec"]["template"]["spec"],
        status=status,
    )
    troubles = next(found for state in backend.watch(handle) if state and (found := state.troubles))
    assert [(each.subject, each.kind.value.words) for each in troubles] == [("etcd", cause)]
    assert all(pod.name != "etcd-0" for pod in next(filter(None, backend.watch(handle))).pods)


def test_the_etcd_ends_with_its_job_although_the_job_is_kept(server: ApiServer, backend: KubernetesBackend) -> None:
    handle = backend.create(job_of(JobKind.BATCH_JOB))
    backend.clean(handle)
    assert etcds(server) == []
    assert backend.find(job_of(JobKind.BATCH_JOB)) is not None


@pytest.fixture
def reaped(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[], list[str]]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(sys, "argv", ["reaper", "--delete"])

    def run() -> list[str]:
        reap()
        return [line for line in capsys.readouterr().out.splitlines() if "etcd" in line]

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_reaper_deletes_an_etcd_whose_job_has_ended_or_was_never_created(
    kind: JobKind, server: ApiServer, reaped: Callable[[], list[str]]
) -> None:
    made = job_of(kind)
    ended = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": stamp(0)}]}
    folder = f"/apis/{kind.traits.api_version}{NAMESPACE}{kind.traits.plural}"
    for instance, status in (("active", {}), ("ended", ended)):
        job = job_manifest(made, None, instance)
        server.put(f"{folder}/{instance}", **{**job, "metadata": {**job["metadata"], "name": instance}}, status=status)
    for instance, created in (
        ("active", stamp(0)),
        ("ended", stamp(0)),
        ("leaked", stamp(0)),
        ("young", datetime.now(UTC).isoformat()),
    ):
        etcd = own_etcd_manifest(made, RUN if instance == "leaked" else None, instance)
        assert etcd is not None
        metadata = {**etcd["metadata"], "name": f"{instance}-etcd", "creationTimestamp": created}
        server.put(f"/apis/batch/v1{NAMESPACE}jobs/{instance}-etcd", **{**etcd, "metadata": metadata})
    said = reaped()
    assert {each["metadata"]["name"] for each in etcds(server)} == {"active-etcd", "young-etcd"}
    assert sorted(line.split(":")[0] for line in said) == ["delete etcd ended-etcd", "delete etcd leaked-etcd"]


def test_doctor_tries_your_etcd_from_a_pod_of_the_training() -> None:
    reader = probes.reader_job("0a", YOURS, "claim", is_ours=True, etcd=etcd_test(YOURS))
    (command,) = (each.command for each in reader.replicas)
    assert json.loads(command[-1])["etcd"] == ["etcd.infra:2380", "protocol=https"]
    assert etcd_test(OWN) == {}
    planned = probes.Probes((), None, reader, reader, reader)
    seen = {"read_only": "mounted", "etcd": "error: etcd at etcd.infra:2380 cannot be used"}
    *_, finding = judge_outcomes(planned, probes.Outcomes({}, {}, seen))
    assert (finding.check, finding.status) == ("etcd", Status.MISSING)
    assert "endpoint" in finding.remedy


def test_the_pod_of_doctor_names_the_etcd_that_it_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_program, "ETCD_SECONDS", 0.0)
    (port,) = free_ports(1)
    seen: dict[str, str] = {}
    pod_program.report("etcd", [f"127.0.0.1:{port}", "protocol=http"], seen)
    assert re.match(f"error: etcd at 127.0.0.1:{port} cannot be used .*refused.* check ", seen["etcd"])


def test_doctor_counts_the_etcd_and_the_permission_for_its_service() -> None:
    asked, plain = (
        Needs.of(planned_manifests(planned("pods.workers=3", "pods.min_workers=2", *more)))
        for more in (["pods.rendezvous.backend=etcd-v2"], [])
    )
    assert asked.kind is JobKind.PYTORCH_JOB
    more = {name: value - plain.peak().get(name, 0) for name, value in asked.peak().items()}
    assert {name: str(value) for name, value in more.items() if value} == {
        **{"pods": "1", "count/pods": "1", "services": "1", "count/services": "1", "count/jobs.batch": "1"},
        **dict.fromkeys(("cpu", "requests.cpu"), "0.100"),
        **dict.fromkeys(("memory", "requests.memory", "limits.memory"), str((256 + 3 * 8) * 2**20)),
    }

    def resources(*, has_etcd: bool) -> set[str]:
        operator = Launcher.TRAINING_OPERATOR
        calls = permissions.calls_of("launch.yaml", [], operator, [operator], has_etcd=has_etcd)
        return {call.resource for call in calls}

    assert resources(has_etcd=True) - resources(has_etcd=False) == {"services"}
