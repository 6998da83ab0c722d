"""`kubetrain translate`: fields of pods and of jobs that need more than a setting of the same name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.run.request import merged, parameters_of
from kubetrain_pipelines.cli.translate import translate_and_show
from kubetrain_pipelines.translate.read_manifests import read_manifests
from kubetrain_pipelines.translate.translation import Translation, translate
from kubetrain_trainer.errors import InvalidSetting
from support.translated import main_in, others_in, settings_of

Manifest = dict[str, Any]


def pod(container: Manifest | None = None, **spec: Any) -> Manifest:
    main = {"name": "pytorch", "image": "a", "command": ["python", "train.py"], **(container or {})}
    return {"spec": {"containers": [main, *spec.pop("sidecars", [])], **spec}}


def pytorch_job(
    template: Manifest, workers: int = 2, labels: Manifest | None = None, master: Manifest | None = None, **spec: Any
) -> Translation:
    roles = {"Worker": {"replicas": workers, "template": template}}
    if master:
        roles["Master"] = {"template": master}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "flowers", "labels": labels or {}},
        "spec": {"pytorchReplicaSpecs": roles, **spec},
    }
    return translate(read_manifests([("job.yaml", json.dumps(job))]))


def named(translation: Translation) -> dict[str, str]:
    """The fields without a counterpart, by the end of their path."""
    return {each.path.replace("spec.pytorchReplicaSpecs.", ""): each.instead for each in translation.unmapped}


FETCH = {"name": "fetch", "image": "amazon/aws-cli", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
SYNC = "aws s3 sync s3://animals/v1 /data"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ({"command": [*SYNC.split(), "--no-sign-request"]}, ("anonymous", None)),
        ({"command": ["sh", "-c"], "args": [f"{SYNC} --only-show-errors"]}, (None, None)),
        (
            {"args": ["s3", "sync", "--endpoint-url=https://minio:9000", "s3://animals/v1", "/in"]},
            (None, "https://minio:9000"),
        ),
    ],
)
def test_an_init_container_that_copies_the_dataset_becomes_its_uri(
    program: Manifest, expected: tuple[Any, ...]
) -> None:
    main = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    template = pod(main, volumes=[{"name": "data", "emptyDir": {}}], initContainers=[{**FETCH, **program}])
    translation = pytorch_job(template)
    found = settings_of(translation)
    assert found["data.uri"] == "s3://animals/v1"
    assert (found.get("data.access"), found.get("data.endpoint")) == expected
    assert not found.get("pods.pod", {}).get("spec", {}).keys() & {"initContainers", "volumes"}
    assert any("init container fetch" in note for note in translation.notes)


def test_an_init_container_that_does_more_than_copy_is_kept() -> None:
    for words in (f"{SYNC} --exclude *.tmp", f"{SYNC} && tar xf /data/a.tar", "aws s3 ls s3://animals"):
        template = pod(initContainers=[{**FETCH, "command": ["sh", "-c", words]}])
        assert settings_of(pytorch_job(template))["pods.pod"]["spec"]["initContainers"][0]["name"] == "fetch"


def test_a_gang_of_fewer_pods_is_named_without_the_advice_to_set_what_is_set() -> None:
    template = pod(schedulerName="volcano")
    translation = pytorch_job(template, runPolicy={"schedulingPolicy": {"minAvailable": 1}})
    assert settings_of(translation)["pods.scheduler"] == "volcano"
    assert "set pods.scheduler" not in named(translation)["spec.runPolicy.schedulingPolicy.minAvailable"]


def test_a_schedulers_name_beside_the_pods_contradicts_no_setting() -> None:
    gang = {"runPolicy": {"schedulingPolicy": {"queue": "team"}}}
    translation = pytorch_job(pod(), schedulerName="volcano", **gang)
    assert settings_of(translation)["pods.scheduler"] == "volcano"
    assert "Kueue" not in named(translation)["spec.schedulerName"]


def test_a_placeholder_for_an_image_has_to_be_filled_in() -> None:
    translation = pytorch_job(pod({"image": "your-registry/train:1"}))
    assert (settings_of(translation)["pods.image"], "pods.image" in translation.missing) == (
        "your-registry/train:1",
        True,
    )
    with pytest.raises(InvalidSetting, match="image 'your-registry/train:1' is a placeholder"):
        parameters_of(merged(translation.request, {"data": {"uri": "s3://bucket/flowers"}}))


def test_objects_that_a_run_does_not_need_are_said_not_to_be_needed() -> None:
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "a"}}
    job["spec"] = {"pytorchReplicaSpecs": {"Worker": {"template": pod()}}}
    others = [
        {"kind": kind, "metadata": {"name": "b"}} for kind in ("Service", "ServiceMonitor", "PersistentVolumeClaim")
    ]
    found = named(
        translate(read_manifests([(f"{number}", json.dumps(each)) for number, each in enumerate([job, *others])]))
    )
    assert "deploy/monitoring" in found["Service b"] and "deploy/monitoring" in found["ServiceMonitor b"]
    assert "staging_size" in found["PersistentVolumeClaim b"]


def test_small_requests_and_limits_are_kept() -> None:
    amounts = {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": "500m", "memory": "2Gi"}}
    settings = settings_of(pytorch_job(pod({"resources": amounts})))
    assert (settings["pods.cpu"], settings["pods.memory"]) == ("250m", "1Gi")
    assert main_in(settings)["resources"]["limits"] == {"cpu": "500m", "memory": "2Gi"}


@pytest.mark.parametrize("path", ["/data/imagenet", "/data/", "/output/logs", "/dev/shm/cache"])
def test_a_mount_inside_kubetrains_own_is_named(path: str) -> None:
    mount, other = {"name": "mine", "mountPath": path}, {"name": "mine", "mountPath": "/database"}
    volume = {"name": "mine", "persistentVolumeClaim": {"claimName": "c"}}
    translation = pytorch_job(pod({"volumeMounts": [mount, other]}, volumes=[volume]))
    assert "elsewhere" in named(translation)["Worker.template.spec.containers[pytorch].volumeMounts[mine].mountPath"]
    assert main_in(settings_of(translation))["volumeMounts"] == [other]


def test_a_pvc_that_may_have_the_dataset_is_proposed() -> None:
    mounts = [
        {"name": "mine", "mountPath": "/mnt/flowers", "subPath": "flowers/2026"},
        {"name": "mine", "mountPath": "/data"},
        {"name": "mine", "mountPath": "/output", "subPath": "results"},
        {"name": "other", "mountPath": "/scratch"},
    ]
    volumes = [{"name": "mine", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "other", "emptyDir": {}}]
    notes = pytorch_job(pod({"volumeMounts": mounts}, volumes=volumes)).notes
    assert [note for note in notes if "pvc://" in note] == [
        "if the dataset of the job is at /mnt/flowers, set data.uri=pvc://c/flowers/2026: pods find it at /data",
        "if the dataset of the job is at /data, set data.uri=pvc://c: pods find it at /data",
    ]


def test_volumes_named_like_kubetrains_own_are_renamed() -> None:
    volumes = [{"name": "claim-0", "emptyDir": {}}, {"name": "shared-memory", "emptyDir": {}}]
    mounts = [{"name": "claim-0", "mountPath": "/a"}, {"name": "shared-memory", "mountPath": "/b"}]
    settings = settings_of(
        pytorch_job(
            pod(
                {"volumeMounts": mounts},
                volumes=volumes,
                sidecars=[{"name": "sync", "image": "s", "volumeMounts": [mounts[0]]}],
            )
        )
    )
    assert [each["name"] for each in settings["pods.pod"]["spec"]["volumes"]] == ["job-claim-0", "job-shared-memory"]
    assert [each["name"] for each in main_in(settings)["volumeMounts"]] == ["job-claim-0", "job-shared-memory"]
    assert others_in(settings)[0]["volumeMounts"][0]["name"] == "job-claim-0"


def test_sidecars_share_the_memory_of_the_training() -> None:
    volumes = [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]
    mount = {"name": "dshm", "mountPath": "/dev/shm"}
    sidecar = {"name": "exporter", "image": "e", "volumeMounts": [mount]}
    settings = settings_of(pytorch_job(pod({"volumeMounts": [mount]}, volumes=volumes, sidecars=[sidecar])))
    assert settings["pods.shm_size"] == "2Gi"
    assert "volumes" not in settings["pods.pod"]["spec"]
    assert others_in(settings)[0]["volumeMounts"] == [{**mount, "name": "shared-memory"}]


@pytest.mark.parametrize(
    ("of_pod", "of_container", "user", "left"),
    [
        ({"runAsUser": 1000}, {"runAsGroup": 100}, 1000, {"runAsGroup"}),
        ({"fsGroup": 100}, {}, None, {"fsGroup"}),
        ({"runAsUser": 1000, "fsGroup": 1000}, {"runAsGroup": 1000}, 1000, set()),
        ({"runAsUser": 2000, "fsGroup": 2000}, {"runAsUser": 1000}, 1000, {"runAsUser", "fsGroup"}),
        ({"fsGroup": 65532}, {}, None, set()),
    ],
)
def test_only_the_user_sets_user(of_pod: Manifest, of_container: Manifest, user: int | None, left: set[str]) -> None:
    translation = pytorch_job(pod({"securityContext": of_container}, securityContext=of_pod))
    assert settings_of(translation).get("pods.user") == user
    assert {path.rpartition(".")[2] for path in named(translation) if "securityContext" in path} == left


def test_what_only_one_role_has_is_named_even_without_content() -> None:
    master = pod(imagePullSecrets=[{"name": "registry"}], volumes=[{"name": "scratch", "emptyDir": {}}])
    names = named(pytorch_job(pod(), master=master))
    assert "Master.template.spec.imagePullSecrets[registry]" in names
    assert "Master.template.spec.volumes[scratch].emptyDir" in names


def test_a_request_below_the_limit_of_a_device_is_said() -> None:
    amounts = {"requests": {"ephemeral-storage": "10Gi"}, "limits": {"ephemeral-storage": "50Gi"}}
    translation = pytorch_job(pod({"resources": amounts}))
    assert main_in(settings_of(translation))["resources"]["limits"] == {"ephemeral-storage": "50Gi"}
    assert any("50Gi, not 10Gi" in note for note in translation.notes)


def test_keys_given_twice_are_refused() -> None:
    with pytest.raises(InvalidSetting, match="image is given twice in line 3"):
        read_manifests([("job.yaml", "kind: PyTorchJob\nimage: a\nimage: b\n")])
    merged = "base: &base {a: 1}\nkind: PyTorchJob\napiVersion: kubeflow.org/v1\nother: {<<: *base, a: 2}\n"
    assert read_manifests([("job.yaml", merged)]).job["other"] == {"a": 2}


METRICS = [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]
KUEUE = {"kueue.x-k8s.io/queue-name": "q"}


@pytest.mark.parametrize(
    ("labels", "policy", "is_taken"),
    [
        ({}, {"minReplicas": 1, "maxReplicas": 4}, True),
        (KUEUE, {"minReplicas": 1, "maxReplicas": 4}, False),
        ({}, {}, False),
    ],
)
def test_metrics_are_taken_for_jobs_that_may_grow(labels: Manifest, policy: Manifest, is_taken: bool) -> None:
    translation = pytorch_job(pod(), labels=labels, elasticPolicy={**policy, "metrics": METRICS})
    assert settings_of(translation).get("pods.scale_metrics") == (METRICS if is_taken else None)
    assert ("spec.elasticPolicy.metrics" in named(translation)) != is_taken


def test_a_metric_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"elasticPolicy.metrics\[0\] must be an object"):
        pytorch_job(pod(), elasticPolicy={"minReplicas": 1, "metrics": ["cpu"]})


def test_a_maximum_below_the_number_of_pods_is_said() -> None:
    translation = pytorch_job(pod(), 4, elasticPolicy={"minReplicas": 1, "maxReplicas": 2})
    assert "pods.max_workers" not in settings_of(translation)
    assert "spec.elasticPolicy.maxReplicas" not in named(translation)
    assert any("4 pods, but at most 2" in note for note in translation.notes)


@pytest.mark.parametrize(
    ("labels", "name", "queue", "settings", "left"),
    [
        (KUEUE, "volcano", None, ("kueue", "q", None), {"schedulerName"}),
        (KUEUE, "volcano", "team", ("kueue", "q", None), {"schedulerName", "queue"}),
        (KUEUE, "scheduler-plugins-scheduler", None, ("kueue", "q", None), {"schedulerName"}),
        (KUEUE, "kai-scheduler", None, ("kueue", "q", "kai-scheduler"), set()),
        ({}, "kai-scheduler", "team", (None, None, "kai-scheduler"), {"queue"}),
        ({}, "scheduler-plugins-scheduler", "team", ("scheduler-plugins", None, None), {"queue"}),
        ({}, "volcano", "team", ("volcano", "team", None), set()),
        ({}, "default-scheduler", "team", ("volcano", "team", None), set()),
    ],
)
def test_one_scheduler_starts_the_gang(
    labels: Manifest, name: str, queue: str | None, settings: tuple[str | None, ...], left: set[str]
) -> None:
    policy = {"runPolicy": {"schedulingPolicy": {"queue": queue}}} if queue else {}
    translation = pytorch_job(pod(schedulerName=name), labels=labels, **policy)
    found = settings_of(translation)
    spec = found.get("pods.pod", {}).get("spec", {})
    assert (found.get("pods.scheduler"), found.get("pods.queue"), spec.get("schedulerName")) == settings
    ends = {path.rpartition(".")[2] for path in named(translation)}
    assert ends & {"schedulerName", "queue"} == left


OWN = {"labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": "flowers"}}, "topologyKey": "zone"}
OTHER = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def test_selectors_of_the_jobs_own_pods_are_left_out() -> None:
    expression = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["flowers"]}]}
    preferred = {"weight": 5, "podAffinityTerm": {"labelSelector": expression, "topologyKey": "zone"}}
    affinity = {
        "podAffinity": {REQUIRED: [OWN, OTHER], "preferredDuringSchedulingIgnoredDuringExecution": [preferred]},
        "podAntiAffinity": {REQUIRED: [OWN]},
    }
    spread = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **OWN}
    translation = pytorch_job(pod(affinity=affinity, topologySpreadConstraints=[spread]))
    settings = settings_of(translation)
    assert settings["pods.pod"]["spec"]["affinity"] == {"podAffinity": {REQUIRED: [OTHER]}}
    assert settings["pods.pod"]["spec"]["topologySpreadConstraints"] == [
        {name: each for name, each in spread.items() if name != "labelSelector"}
    ]
    assert len([path for path, instead in named(translation).items() if "together" in instead]) == 3


def test_a_selector_of_a_label_that_the_pods_keep_is_taken() -> None:
    own = {"labelSelector": {"matchLabels": {"app": "flowers"}}, "topologyKey": "zone"}
    template = pod(affinity={"podAffinity": {REQUIRED: [own]}})
    template["metadata"] = {"labels": {"app": "flowers"}}
    assert settings_of(pytorch_job(template))["pods.pod"]["spec"]["affinity"] == {"podAffinity": {REQUIRED: [own]}}


@pytest.mark.parametrize(
    ("context", "note"),
    [
        ({"runAsUser": 0}, "runs as root"),
        ({"runAsUser": 0, "runAsNonRoot": False}, None),
        ({"privileged": True}, "restricted"),
        ({"capabilities": {"add": ["SYS_ADMIN"]}}, "restricted"),
    ],
)
def test_privileges_of_other_containers_are_said(context: Manifest, note: str | None) -> None:
    translation = pytorch_job(pod(initContainers=[{"name": "setup", "image": "s", "securityContext": context}]))
    found = [each for each in translation.notes if "container setup" in each]
    assert len(found) == (note is not None)
    assert all(note in each for each in found if note)


def test_what_needs_care_is_said() -> None:
    volumes = [{"name": "disk", "hostPath": {"path": "/x"}}]
    container = {
        "env": [{"name": "AUTH", "value": "Bearer $(WANDB_API_KEY)"}, {"name": "LEVEL", "value": "$HOME"}],
        "volumeMounts": [{"name": "disk", "mountPath": "/x"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    notes = pytorch_job(pod(container, volumes=volumes, sidecars=[{"name": "exporter", "image": "e"}])).notes
    for words in (
        "AUTH refers to other variables",
        "disk is a hostPath",
        "exporter.* restartPolicy Always",
        "limited",
    ):
        assert any(re.search(words, note) for note in notes), words
    assert not any("LEVEL" in note for note in notes)


def test_roles_are_accepted_in_any_case_and_named_only_with_pods() -> None:
    roles = {"Master": {"template": pod()}, "worker": {"replicas": 3, "template": pod()}}
    translation = pytorch_job(pod(), pytorchReplicaSpecs=roles)
    assert settings_of(translation)["pods.workers"] == 4
    assert not [path for path in named(translation) if "replicas" in path]
    assert settings_of(pytorch_job(pod(), 0, master=pod()))["pods.workers"] == 1
    assert "Worker.replicas" not in named(pytorch_job(pod(), 0, master=pod()))
    with pytest.raises(InvalidSetting, match="are one role"):
        pytorch_job(pod(), pytorchReplicaSpecs={**roles, "Worker": {"template": pod()}})


def test_reasons_have_the_remedy() -> None:
    labels = {**KUEUE, "kueue.x-k8s.io/priority-class": "high"}
    policy = {"managedBy": "trainer.kubeflow.org/trainjob-controller", "schedulingPolicy": {"minAvailable": 2}}
    translation = pytorch_job(pod(activeDeadlineSeconds=77), labels=labels, runPolicy=policy)
    names = named(translation)
    assert names["Worker.template.spec.activeDeadlineSeconds"] == "set pods.deadline_seconds"
    assert names["metadata.labels.kueue.x-k8s.io/priority-class"] == "set priorityClassName of pods.pod"
    assert not [path for path in names if "runPolicy" in path]
    with pytest.raises(InvalidSetting, match="2 pods, but minReplicas is 3"):
        pytorch_job(pod(), elasticPolicy={"minReplicas": 3})


def test_a_file_in_another_encoding_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("kind: PyTorchJob", encoding="utf-16")
    with pytest.raises(InvalidSetting, match="save it as UTF-8"):
        translate_and_show([tmp_path / "job.yaml"], None)
