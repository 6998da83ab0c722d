"""The plan of everything that a run creates on a cluster."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.run.admission import admit_run
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.request import merged
from kubetrain_components.sites import cluster
from kubetrain_components.sites.cluster import ClusterSite
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_trainer.errors import InvalidSetting
from support.api_server import ApiServer
from support.manifests import templates_in


def admitted(framework: str = "pytorch", **groups: dict[str, Any]) -> RunParameters:
    uris = {"data": {"uri": "s3://bucket/Digits v2/"}, "model": {"uri": "s3://bucket/models"}}
    names = {"pipeline": "train-pytorch", "run_id": "5f2c", "framework": framework}
    return admit_run(merged(uris, groups), **names, components_image="components:1", trainer_image="trainer:1")


def plan(framework: str = "pytorch", **groups: dict[str, Any]) -> list[dict[str, Any]]:
    return planned_manifests(admitted(framework, **groups))


def images(manifest: dict[str, Any]) -> set[str]:
    return {container["image"] for each in templates_in(manifest) for container in each["spec"]["containers"]}


def test_every_container_of_a_run_has_a_cpu_limit_if_the_training_has_one() -> None:
    """A quota on limits.cpu demands it."""
    pods = {
        **{"cpu": "8", "workers": 3, "min_workers": 2, "rendezvous": {"backend": "etcd-v2"}},
        "pod": pod_patch({}, {"resources": {"limits": {"cpu": "16"}}}),
    }
    data = {"test_split": "test", "format": "tar_shards", "delivery": "cache"}
    made = plan(pods=pods, data=data, model={"name": "own:build"}, train={"skip_unchanged": True})
    pods = [each["spec"] for each in templates_in(made)]
    containers = [each for pod in pods for each in (*pod.get("initContainers", []), *pod["containers"])]
    limits = [each["resources"]["limits"]["cpu"] for each in containers]
    assert Counter(limits) == {"16": 2, "1": 3, "500m": 1, "100m": 2}


def test_a_training_run_creates_two_pvcs_and_three_jobs() -> None:
    made = plan(storage={"staging_claim": "stage", "output_claim": "out"})
    names = [(each["kind"], each["metadata"]["name"].rsplit("-", 2)[0]) for each in made]
    assert names[:2] == [("PersistentVolumeClaim", "stage"), ("PersistentVolumeClaim", "out")]
    assert names[2:] == [
        ("Job", "train-pytorch-sync-dataset"),
        ("PyTorchJob", "train-pytorch-launch-training"),
        ("Job", "train-pytorch-evaluate-model"),
    ]
    assert [images(each) for each in made[2:]] == [{"components:1"}, {"trainer:1"}, {"trainer:1"}]


@pytest.mark.parametrize(("group", "uri"), [("data", "flowers/x"), ("data", "file:///data/x"), ("model", "/models")])
def test_a_directory_that_no_pod_has_is_refused(group: str, uri: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"^{group}.uri '{uri}' is the path of a directory.*: write s3://BUCKET"):
        plan(**{group: {"uri": uri}})


def test_a_dataset_may_be_in_a_volume_of_the_transfer() -> None:
    mounted = {
        "pod": pod_patch(
            {"volumes": [{"name": "nfs", "emptyDir": {}}]}, {"volumeMounts": [{"name": "nfs", "mountPath": "/nfs"}]}
        )
    }
    assert plan(data={"uri": "/nfs/flowers"}, storage={"transfer": mounted})
    with pytest.raises(InvalidSetting, match=r"data\.uri '/nfs2/flowers' is the path"):
        plan(data={"uri": "/nfs2/flowers"}, storage={"transfer": mounted})


def test_training_pods_mount_the_version_read_only_and_the_output() -> None:
    master = plan()[3]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    data, output = (each["persistentVolumeClaim"] for each in master["volumes"][:2])
    assert data == {"claimName": "ds-kubetrain-staging-digits-v2-0000000000000000", "readOnly": True}
    assert output == {"claimName": "kubetrain-output"}
    mounts = master["containers"][0]["volumeMounts"]
    assert (mounts[0]["mountPath"], mounts[0]["subPath"]) == ("/data", "versions/0000000000000000/data")
    assert mounts[1]["mountPath"] == "/output"


def test_a_custom_image_trains_and_evaluates() -> None:
    assert [images(each) for each in plan(pods={"image": "mine:2"})[3:]] == [{"mine:2"}, {"mine:2"}]


def test_each_gpu_has_a_process_and_the_evaluation_has_one_gpu() -> None:
    training, evaluation = plan(pods={"gpus": 8, "evaluation": {"memory": "8Gi"}})[3:]
    assert training["spec"]["nprocPerNode"] == "8"
    master = training["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    limits = [each["spec"]["containers"][0]["resources"]["limits"] for each in (master, evaluation["spec"]["template"])]
    assert limits == [{"nvidia.com/gpu": "8", "memory": "4Gi"}, {"nvidia.com/gpu": "1", "memory": "8Gi"}]
    with pytest.raises(InvalidSetting, match="6 of a pod's 8 GPUs would be idle"):
        plan(pods={"gpus": 8, "processes": 2})
    script = {"entry": {"script": "train.py"}}
    assert plan(pods={"gpus": 8, "processes": 2}, train=script)[-1]["spec"]["nprocPerNode"] == "2"
    with pytest.raises(InvalidSetting, match=r"no setting 'pods\.gpu': did you mean 'pods\.gpus'"):
        plan(pods={"evaluation": {"gpu": 1}})


def test_a_gate_that_compares_lets_only_the_evaluation_fetch_the_latest_model() -> None:
    certificates = [{"name": "ca", "configMap": {"name": "ca"}}]
    pod = pod_patch({"volumes": certificates}, {"volumeMounts": [{"name": "ca", "mountPath": "/ca"}]})
    transfer = {"env": {"AWS_CA_BUNDLE": "/ca/ca.crt"}, "pod": pod}
    volumes = [{"name": "own", "emptyDir": {}}, *certificates]
    own = {"pod": pod_patch({"initContainers": [{"name": "own", "image": "own:1"}], "volumes": volumes})}
    settings = {"train": {"code": "0" * 32}, "storage": {"transfer": transfer}, "pods": {"evaluation": own}}
    without = plan(**settings, model={"gate": "accuracy>=0.9"})
    made = plan(**settings, model={"gate": "not worse than latest by 0.005"})
    assert made[:-1] == without[:-1]
    pod = made[-1]["spec"]["template"]["spec"]
    fetcher, code, mine = pod["initContainers"]
    assert (code["name"], mine["name"]) == ("kubetrain-code", "own")
    source = ["--uri", "s3://bucket/models", "--endpoint", "", "--to", "/latest-model"]
    assert fetcher["command"] == ["python", "-m", "kubetrain_components.fetch_model.fetch", *source]
    assert fetcher["image"] == "components:1"
    assert fetcher["envFrom"] == [{"secretRef": {"name": "kubetrain-s3", "optional": True}}]
    assert fetcher["env"][0] == {"name": "AWS_CA_BUNDLE", "value": "/ca/ca.crt"}
    assert fetcher["securityContext"]["allowPrivilegeEscalation"] is False
    assert [each["mountPath"] for each in fetcher["volumeMounts"]] == ["/ca", "/latest-model"]
    names = [volume["name"] for volume in pod["volumes"]]
    assert sorted(names) == sorted({*names, "ca", "own", "kubetrain-latest-model"}), "each of them once"
    (main,) = pod["containers"]
    assert main["command"][-4:-2] == ["--latest", "/latest-model"]
    mounted = {"name": "kubetrain-latest-model", "mountPath": "/latest-model", "readOnly": True}
    assert mounted in main["volumeMounts"]
    assert "kubetrain-s3" not in str(main)


def test_a_mount_of_your_own_cannot_be_where_the_latest_model_is() -> None:
    mount = {"name": "own", "mountPath": "/latest-model/"}
    placed = {"pod": pod_patch({"volumes": [{"name": "own", "emptyDir": {}}]}, {"volumeMounts": [mount]})}
    assert plan(pods={"evaluation": placed})
    with pytest.raises(InvalidSetting, match="two volumes of a pod are mounted at /latest-model"):
        plan(pods={"evaluation": placed}, model={"gate": "not worse than latest"})


def test_a_task_of_your_own_is_imported_first_without_a_gpu() -> None:
    fetch = {"name": "fetch-code", "image": "git:1"}
    pods = {
        **{"gpus": 8, "memory": "200Gi", "shm_size": "64Gi", "env": {"PYTHONPATH": "/code"}},
        "pod": pod_patch(
            {
                "initContainers": [fetch],
                "volumes": [{"name": "code", "emptyDir": {}}],
                "nodeSelector": {"pool": "train"},
            },
            {"volumeMounts": [{"name": "code", "mountPath": "/code"}]},
        ),
    }
    task = {"name": "team.task:build"}
    first = plan(pods=pods, model=task)[0]
    pod = first["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert first["metadata"]["name"].startswith("train-pytorch-check-imports")
    assert container["command"] == [
        "python",
        "-m",
        "kubetrain_trainer.own_code.check_imports",
        "--framework",
        "pytorch",
        "--model",
        "team.task:build",
    ]
    assert (container["image"], pod["nodeSelector"]) == ("trainer:1", {"pool": "train"})
    assert container["resources"] == {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "200Gi"}}
    assert [each["mountPath"] for each in container["volumeMounts"]] == ["/dev/shm", "/code"]
    assert [each["name"] for each in pod["initContainers"]] == ["fetch-code"]
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert "check-imports" not in str(plan(pods={"check_imports": False}, model=task))
    small = plan(pods={"memory": "1Gi"}, model=task)[0]["spec"]["template"]["spec"]
    assert small["containers"][0]["resources"]["requests"]["memory"] == "1Gi"


def test_every_pod_has_a_limit_of_cpus_if_the_training_has_one() -> None:
    """A quota may demand it of every pod of the namespace."""
    own_task = {"model": {"name": "mytask:build"}, "train": {"skip_unchanged": True}}
    for limit in ("", "4"):
        limits = {"limits": {"cpu": limit}} if limit else {}
        pod = pod_patch({}, {"resources": limits})
        made = plan(**own_task, pods={"image": "mine:2", "workers": 1, "pod": pod})
        pods = [each for each in made if each["kind"] == "Job"]
        limits = [
            container["resources"]["limits"].get("cpu")
            for pod in pods
            for container in pod["spec"]["template"]["spec"]["containers"]
        ]
        assert len(limits) >= 3
        assert all(bool(each) == bool(limit) for each in limits), limits
    larger = plan(
        pods={"image": "mine:2", "pod": pod_patch({}, {"resources": {"limits": {"cpu": "2"}}})},
        storage={"transfer": {"cpu": "4"}},
    )[2]
    (container,) = larger["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == "4", "a limit is never below the request"


def test_a_sync_only_run_creates_one_pvc_and_one_job() -> None:
    assert [each["kind"] for each in plan(framework="")] == ["PersistentVolumeClaim", "Job"]


@pytest.mark.parametrize(
    ("launcher", "kinds"),
    [
        ("auto", ["PyTorchJob"]),
        ("training-operator", ["PyTorchJob"]),
        ("trainer", ["TrainingRuntime", "TrainJob"]),
        ("job", ["Service", "Job"]),
    ],
)
def test_what_a_training_needs_beside_its_job_is_created_before_it(launcher: str, kinds: list[str]) -> None:
    *companions, training = plan(pods={"launcher": launcher})[3:-1]
    assert [each["kind"] for each in (*companions, training)] == kinds
    assert all(each["metadata"]["name"] in yaml.safe_dump(training["spec"]).split() for each in companions)


def test_only_the_training_has_a_launcher() -> None:
    annotations = [each["metadata"].get("annotations", {}) for each in plan(pods={"launcher": "job"})]
    assert [each["kubetrain/launcher"] for each in annotations if "kubetrain/launcher" in each] == ["job"]


def test_the_first_step_plans_with_the_launcher_that_the_cluster_has(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(cluster, "sync_on_cluster", lambda *unused: {})
    server.serve("batch/v1", "jobs")

    def sync(framework: str = "pytorch", **groups: dict[str, Any]) -> list[str]:
        with KubernetesBackend.connect() as backend:
            ClusterSite().sync(admitted(framework, **groups), backend, lambda line: None)
        return capsys.readouterr().out.splitlines()

    lines = sync()
    assert "planned: launcher job (the cluster has Job)" in lines
    assert [line.split()[1] for line in lines][-3:] == ["Service", "Job", "Job"]
    assert not any("launcher" in line for line in sync(framework=""))
    server.serve("trainer.kubeflow.org/v1alpha1", "trainjobs")
    assert [line.split()[1] for line in sync()][-3:] == ["TrainingRuntime", "TrainJob", "Job"]
    with pytest.raises(InvalidSetting, match="volcano does not start a TrainJob as a gang"):
        sync(pods={"scheduler": "volcano"})


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ({"pods": {"restart_policy": "Always"}}, "pods.restart_policy Always"),
        ({"pods": {"env": {"MASTER_ADDR": "x"}}}, "MASTER_ADDR is set by the operator"),
        ({"storage": {"exposure": "static"}}, "storage.exposure 'static'.*static_claim"),
        ({"storage": {"transfer": {"memory": "much"}}}, "memory 'much' is not a Kubernetes quantity"),
        ({"storage": {"staging_size": "big"}}, "'big' is not a Kubernetes quantity"),
        ({"train": {"epoch": 1}}, "no setting 'train.epoch'"),
        ({"model": {"gate": "acuracy>=0.9"}}, "no metric 'acuracy': did you mean 'accuracy'"),
        ({"model": {"gate": "accuracy>0,9"}}, "model.gate: '9' is not a condition"),
        ({"model": {"uri": "ftp://bucket"}}, "model.uri 'ftp://bucket'"),
        ({"pods": {"launcher": "job", "scheduler": "volcano"}}, "launcher.training-operator"),
        ({"pods": {"launcher": "v1"}}, "pods.launcher cannot be 'v1'"),
    ],
)
def test_settings_that_would_fail_hours_later_are_refused_first(groups: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        plan(**groups)
