"""`kubetrain translate`: the run does what the hand-written job did, and each other field is named."""

import contextlib
import json
import random
import re
from functools import reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.cli.main import main
from kubetrain_pipelines.cli.runs import submit_and_show
from kubetrain_pipelines.cli.train import TrainOptions
from kubetrain_pipelines.cli.train_command import command_job_of
from kubetrain_pipelines.cli.translate import report, translate_and_show
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.submit import RunOptions
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.planned_run import planned_run
from kubetrain_pipelines.requests.request_file import RequestFile, read_source
from kubetrain_pipelines.requests.yaml_text import parse_yaml, to_yaml
from kubetrain_pipelines.translate.read_manifests import read_manifests
from kubetrain_pipelines.translate.reasons import OTHER_MEANING, SHORT_NAMES, like_settings
from kubetrain_pipelines.translate.torchrun import torchrun_in
from kubetrain_pipelines.translate.translation import Translation
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.settings.config import TrainConfig
from support.manifests import templates_in
from support.translated import (
    ALIKE,
    HAND_WRITTEN,
    PROGRAM,
    Manifest,
    changed,
    job_in,
    leaves_of,
    text_of,
    translated,
    unmapped,
)

COMPILED = Path(__file__).parents[2] / "compiled"
URIS = ("data.uri=s3://bucket/flowers", "model.uri=s3://bucket/models")
SECRET = "very-secret-value"


def asked_run(file: Path, *pairs: str) -> RequestFile:
    return AskedRun(source=str(file), pairs=(*URIS, *pairs)).read()


def rendered(translation: Translation, folder: Path, *pairs: str) -> list[Manifest]:
    """What the run creates for its training, through the file as `render` reads it."""
    file = folder / "run.yaml"
    file.write_text(to_yaml({"pipeline": translation.pipeline, **translation.request}))
    manifests = planned_manifests(planned_run(asked_run(file, *pairs), "run-1"))
    return [each for each in manifests if "launch-training" in each["metadata"]["name"]]


def environment_of(template: Manifest) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in template["spec"]["containers"][0]["env"]}


def script_of(made: Manifest) -> str:
    """The script that a pod runs, with its arguments; empty if the trainer runs."""
    command = made["spec"]["containers"][0]["command"]
    entry = json.loads(command[command.index("--entry") + 1]) if "--entry" in command else {}
    return " ".join([entry.get("script", ""), *entry.get("args", [])])


@pytest.mark.parametrize("launcher", ["training-operator", "trainer", "job"])
@pytest.mark.parametrize("name", ["pytorch_job", "elastic_pytorch_job", "tf_job", "elastic_job"])
def test_pods_have_every_field_that_is_not_named(name: str, launcher: str, tmp_path: Path) -> None:
    if (name, launcher) in (("tf_job", "trainer"), ("tf_job", "job")):
        pytest.skip("Volcano starts gangs of the training operator only")
    translation, template = translated(text_of(name)), templates_in(job_in(name))[-1]
    container = template["spec"]["containers"][0]["name"]
    named = {re.sub(r".*?\.template\.", "", path).replace(f"[{container}]", "[main]") for path in unmapped(translation)}
    leaves = leaves_of(template).items()
    wanted = {path: value for path, value in leaves if path not in named and not PROGRAM.fullmatch(path)}
    program = " ".join(
        [*template["spec"]["containers"][0].get("command", []), *template["spec"]["containers"][0].get("args", [])]
    )
    for made in templates_in(rendered(translation, tmp_path, f"pods.launcher={launcher}")):
        script = script_of(made)
        is_filled_in = "train.entry" in translation.missing
        assert is_filled_in == (name == "pytorch_job"), "its arguments have a secret"
        assert script == "<SCRIPT>" if is_filled_in else program.endswith(script)
        missing = {path: value for path, value in wanted.items() if leaves_of(made).get(path) != value}
        assert missing.keys() - {"apiVersion", "kind"} <= ALIKE.keys(), missing


def replicas_of(manifest: Manifest, field: str) -> int:
    return sum(each.get("replicas", 1) for each in manifest["spec"][field].values())


def test_a_pytorch_job_keeps_its_pods_and_processes(tmp_path: Path) -> None:
    (made,) = rendered(translated(text_of("pytorch_job")), tmp_path)
    assert made["kind"] == "PyTorchJob"
    assert {role: each["replicas"] for role, each in made["spec"]["pytorchReplicaSpecs"].items()} == {
        "Master": 1,
        "Worker": 3,
    }
    assert made["spec"]["nprocPerNode"] == "2"
    assert made["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == 86400
    (shared,) = (
        each["emptyDir"] for each in templates_in(made)[0]["spec"]["volumes"] if each["name"] == "shared-memory"
    )
    assert shared == {"medium": "Memory", "sizeLimit": "16Gi"}
    settings = planned_run(asked_run(tmp_path / "run.yaml"), "run-1").placement
    assert (settings.max_restarts, settings.deadline_seconds) == (4, 36000)


def test_an_elastic_pytorch_job_keeps_its_rendezvous_and_queue(tmp_path: Path) -> None:
    translation = translated(text_of("elastic_pytorch_job"))
    (made,) = rendered(translation, tmp_path)
    policy, theirs = made["spec"]["elasticPolicy"], job_in("elastic_pytorch_job")["spec"]["elasticPolicy"]
    for field in ("minReplicas", "maxReplicas", "rdzvBackend"):
        assert policy[field] == theirs[field]
    assert made["spec"]["nprocPerNode"] == "4"
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert made["spec"]["runPolicy"]["suspend"] is True
    assert translation.request["pods"]["max_restarts"] == 5
    _, job = rendered(translation, tmp_path, "pods.launcher=job")
    assert environment_of(templates_in(job)[0])["PET_NNODES"] == "2:4"


def test_a_tf_job_keeps_its_chief_workers_and_gang(tmp_path: Path) -> None:
    (made,) = rendered(translated(text_of("tf_job")), tmp_path)
    assert replicas_of(made, "tfReplicaSpecs") == 3
    assert {each["restartPolicy"] for each in made["spec"]["tfReplicaSpecs"].values()} == {"ExitCode"}
    policy = job_in("tf_job")["spec"]["runPolicy"]["schedulingPolicy"]
    assert made["spec"]["runPolicy"]["schedulingPolicy"] == policy


@pytest.mark.parametrize(
    ("name", "replacements", "fewest", "most"),
    [
        ("elastic_job", [], 1, 3),
        ("elastic_job", [("  minReplicas: 1\n", "")], 2, 3),
        ("elastic_job", [("maxReplicas: 3", "maxReplicas: 2")], 1, None),
        ("elastic_job", [("  maxReplicas: 3\n", ""), ("minReplicas: 1", "minReplicas: 2")], 2, None),
        ("pytorch_job", [("torchrun, ", "torchrun, --nnodes=2:8, ")], 2, 8),
    ],
)
def test_an_elastic_job_may_grow(name: str, replacements: list[tuple[str, str]], fewest: int, most: int | None) -> None:
    translation = changed(name, *replacements)
    assert translation.request["pods"]["min_workers"] == fewest
    assert translation.request["pods"].get("max_workers") == most


def test_an_elastic_job_keeps_its_workers_without_etcd(tmp_path: Path) -> None:
    translation = translated(text_of("elastic_job"))
    (made,) = rendered(translation, tmp_path)
    assert made["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2
    assert made["spec"]["elasticPolicy"]["minReplicas"] == 1
    assert made["spec"]["elasticPolicy"]["maxReplicas"] == 3
    assert made["spec"]["nprocPerNode"] == "4"
    found = {each.path: each.instead for each in translation.unmapped}
    assert "c10d" in found["spec.rdzvEndpoint"]
    assert "not needed" in found["Service etcd-service"]
    assert "not needed" in found["Pod etcd"]


def test_a_train_job_has_the_pods_of_its_runtime_with_its_changes(tmp_path: Path) -> None:
    translation = translated(text_of("train_job"))
    assert translation.request["data"]["uri"] == "s3://datasets/flowers"
    runtime, made = rendered(translation, tmp_path, "pods.launcher=trainer", "pods.scheduler=")
    assert made["spec"]["trainer"]["numNodes"] == 3
    (template,) = templates_in(runtime)
    leaves, environment = leaves_of(template), environment_of(template)
    assert leaves["spec.nodeSelector.accelerator"] == "h100"
    assert leaves["spec.nodeSelector.pool"] == "training"
    assert leaves["spec.tolerations[0].key"] == "gpu"
    assert leaves["spec.containers[main].volumeMounts[cache].mountPath"] == "/cache"
    assert leaves["spec.containers[main].resources.requests.cpu"] == "4"
    assert "spec.containers[main].resources.limits.cpu" not in leaves
    assert leaves["spec.containers[main].resources.limits.nvidia.com/gpu"] == "2"
    assert leaves["spec.containers[main].image"] == "registry.example.com/vision/tuned:1"
    assert leaves["spec.volumes[shared-memory].emptyDir.sizeLimit"] == "8Gi"
    assert environment["AUGMENT"] == "false"
    assert environment["LEVEL"] == "3"
    assert environment["PET_NPROC_PER_NODE"] == "2"


NAMED = {
    "pytorch_job": [
        "metadata.labels.team",
        "metadata.name",
        "metadata.namespace",
        *(
            f"spec.pytorchReplicaSpecs.Worker.template.spec.{name}"
            for name in (
                "containers[pytorch].args",
                "containers[pytorch].command",
                "containers[pytorch].env[WANDB_API_KEY].value",
                "containers[pytorch].ports[pytorchjob-port].containerPort",
                "containers[pytorch].volumeMounts[results].mountPath",
                "containers[pytorch].workingDir",
                "volumes[results].persistentVolumeClaim.claimName",
            )
        ),
        "spec.runPolicy.cleanPodPolicy",
    ],
    "elastic_pytorch_job": ["metadata.name"],
    "tf_job": [
        "metadata.name",
        "spec.tfReplicaSpecs.Evaluator.replicas",
        "spec.tfReplicaSpecs.PS.replicas",
        "spec.tfReplicaSpecs.Worker.template.spec.containers[tensorflow].livenessProbe.exec.command",
        "spec.tfReplicaSpecs.Worker.template.spec.containers[uploader].env[PASSWORD].value",
    ],
    "train_job": [
        "ClusterTrainingRuntime/torch-gpu.spec.template.spec.replicatedJobs[dataset-initializer]",
        "ClusterTrainingRuntime/torch-gpu.spec.template.spec.replicatedJobs[node].template.spec.backoffLimit",
        "metadata.name",
    ],
    "mpi_job": [
        "metadata.name",
        *(
            f"spec.mpiReplicaSpecs.Launcher.template.spec.containers[mpi].{name}"
            for name in (
                "env[LEVEL].value",
                "env[WANDB_API_KEY].value",
                "resources.limits.cpu",
                "resources.limits.memory",
                "resources.limits.nvidia.com/gpu",
            )
        ),
    ],
    "mpi_operator_job": [
        "metadata.name",
        "spec.mpiImplementation",
        "spec.mpiReplicaSpecs.Launcher.template.metadata.labels.tier",
        "spec.mpiReplicaSpecs.Worker.restartPolicy",
        "spec.mpiReplicaSpecs.Worker.template.spec.containers[mpi-worker].readinessProbe.tcpSocket.port",
        "spec.mpiReplicaSpecs.Worker.template.spec.containers[mpi-worker].securityContext.capabilities.add",
        "spec.runPolicy.cleanPodPolicy",
        "spec.runPolicy.suspend",
        "spec.sshAuthMountPath",
    ],
    "xgboost_job": [
        "metadata.name",
        "spec.xgbReplicaSpecs.Worker.template.spec.containers[xgboost].ports[xgboostjob-port].containerPort",
    ],
    "paddle_job": ["metadata.name", "spec.elasticPolicy"],
    "jax_job": ["metadata.name", "spec.jaxReplicaSpecs.Worker.restartPolicy"],
    "elastic_job": [
        "Pod etcd",
        "Service etcd-service",
        "metadata.name",
        "metadata.namespace",
        "spec.RunPolicy.cleanPodPolicy",
        "spec.rdzvEndpoint",
        "spec.replicaSpecs.Worker.restartPolicy",
    ],
}


def contains(found: Any, wanted: Any) -> bool:
    """Return True if the object has all these fields, as deep as they are given."""
    if isinstance(wanted, dict):
        return all(contains((found or {}).get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return all(any(contains(item, each) for item in found) for each in wanted)
    return bool(found == wanted)


@pytest.mark.parametrize("name", NAMED)
def test_fields_without_a_counterpart_are_named_with_a_remedy(name: str) -> None:
    translation = translated(text_of(name))
    assert sorted(unmapped(translation)) == sorted(NAMED[name])
    assert all(each.instead for each in translation.unmapped)


def test_an_unknown_field_is_named_wherever_it_is() -> None:
    text = text_of("pytorch_job").replace("nprocPerNode", "novel: {deep: [1, 2]}\n  nprocPerNode")
    text = text.replace("workingDir: /code", "workingDir: /code\n            odd: {setting: 5}")
    found = unmapped(translated(text))
    assert found["spec.novel.deep"] == "[1, 2]"
    assert found["spec.pytorchReplicaSpecs.Worker.template.spec.containers[pytorch].odd.setting"] == "5"


def test_objects_that_have_only_a_name_are_named_where_it_sets_something() -> None:
    gates = "schedulingGates: [{name: example.com/ready}]"
    gated = "\n          ".join(["serviceAccountName: trainer", gates])
    found = unmapped(changed("pytorch_job", ("serviceAccountName: trainer", gated)))
    pod = "spec.pytorchReplicaSpecs.Worker.template.spec"
    assert found[f"{pod}.schedulingGates[example.com/ready]"] == '"example.com/ready"'


@pytest.mark.parametrize(
    ("name", "given", "default"),
    [
        ("tf_job", "restartPolicy: ExitCode", "Never"),
        ("jax_job", "restartPolicy: Always", "Never"),
        ("pytorch_job", "restartPolicy: OnFailure", "OnFailure"),
    ],
)
def test_a_restart_policy_that_is_not_given_is_the_operators(name: str, given: str, default: str) -> None:
    lines = [line for line in text_of(name).splitlines() if line.strip() != given]
    translation = translated("\n".join(lines).replace(f"{given}, ", ""))
    assert translation.request["pods"].get("restart_policy", "OnFailure") == default
    assert not [path for path in unmapped(translation) if path.endswith("restartPolicy")]


@pytest.mark.parametrize(("program", "is_noted"), [("python", True), ("torchrun", False)])
def test_processes_that_only_torchrun_would_start_are_noted(program: str, is_noted: bool) -> None:
    container = f'{{name: pytorch, image: "i:1", command: [{program}, /app/train.py]}}'
    translation = translated(f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: several}}
spec:
  nprocPerNode: "4"
  pytorchReplicaSpecs:
    Worker: {{replicas: 2, template: {{spec: {{containers: [{container}]}}}}}}
""")
    assert translation.request["pods"].get("processes", 4) == 4
    assert any("does not use torchrun" in note for note in translation.notes) == is_noted


def test_options_of_torchrun_override_the_elastic_policy_as_in_the_pods() -> None:
    policy = "elasticPolicy: {minReplicas: 1, maxReplicas: 4, maxRestarts: 1}"
    options = "command: [torchrun, '--nnodes=2:8', --max-restarts=9, /app/train.py]"
    job = f"""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: both}}
spec:
  {policy}
  pytorchReplicaSpecs:
    Worker: {{replicas: 3, template: {{spec: {{containers: [{{name: pytorch, image: "i:1", {options}}}]}}}}}}
"""
    translation = translated(job)
    given = translation.request["pods"]
    assert [given[name] for name in ("min_workers", "max_workers", "max_restarts")] == [2, 8, 9]
    assert {f"spec.elasticPolicy.{name}" for name in ("minReplicas", "maxReplicas", "maxRestarts")} <= {
        *unmapped(translation)
    }


def test_texts_that_only_yaml_1_1_takes_for_numbers_or_times_stay_texts() -> None:
    text = text_of("tf_job").replace("{name: BUCKET, value: logs}", "{name: BUCKET, value: 12:30}")
    given = "{time: 2024-01-01T00:00:00Z, float: 1.5, count: 7, negative: -1, hex: 0x1f}"
    text = text.replace("{name: mnist,", f"{{name: mnist, annotations: {given},")
    manifest = read_manifests([("job.yaml", text)]).job
    read = {"time": "2024-01-01T00:00:00Z", "float": 1.5, "count": 7, "negative": -1, "hex": 31}
    assert manifest["metadata"]["annotations"] == read
    (_, uploader) = manifest["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"]
    assert uploader["env"][0]["value"] == "12:30"


def test_pods_of_roles_that_differ_are_named() -> None:
    text = text_of("tf_job").replace(
        "    Worker: {replicas: 2, restartPolicy: ExitCode, template: *template}",
        """    Worker:
      replicas: 2
      restartPolicy: ExitCode
      template:
        spec:
          nodeSelector: {pool: workers}
          containers:
          - name: tensorflow
            image: registry.example.com/vision/other:1
            resources: {requests: {cpu: 2, memory: 4Gi}}""",
    )
    translation = translated(text)
    chief = "spec.tfReplicaSpecs.Chief.template.spec.containers[tensorflow].image"
    assert unmapped(translation)[chief] == '"registry.example.com/vision/mnist:2"'
    assert translation.request["pods"]["image"] == "registry.example.com/vision/other:1"
    assert any("nodeSelector.pool" in note for note in translation.notes)


def test_placeholders_are_refused_by_render_and_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(COMPILED.parent)
    file = tmp_path / "run.yaml"
    translate_and_show([HAND_WRITTEN / "pytorch_job.yaml"], file)
    with pytest.raises(InvalidSetting, match=r"data\.uri.*placeholder"):
        planned_run(read_source(str(file)), "run-1")
    api = KfpApi(Connection(endpoint="http://localhost:1", environment={}))
    for pairs, says in ((), r"data\.uri"), (URIS[:1], r"model\.uri"):
        options = RunOptions(source=str(file), pairs=pairs)
        with pytest.raises(InvalidSetting, match=rf"{says}.*placeholder"):
            submit_and_show(api, options)


@pytest.mark.parametrize("name", NAMED)
def test_the_written_file_runs_once_its_placeholders_are_filled_in(name: str, tmp_path: Path) -> None:
    file, translation = tmp_path / "run.yaml", translated(text_of(name))
    translate_and_show([HAND_WRITTEN / f"{name}.yaml"], file)
    filled = {"<BUCKET>": "mine", "<DATASET>": "flowers", "<MODELS>": "models", "<SCRIPT>": "train.py"}
    file.write_text(reduce(lambda text, pair: text.replace(*pair), filled.items(), file.read_text()))
    asked = read_source(str(file))
    if translation.command:
        planned = command_job_of(TrainOptions(cluster=True, command=translation.command), asked)
    else:
        planned = planned_run(asked, "run-1")
        assert planned.train_config.entry["script"].endswith(".py")
    assert planned.framework == translation.pipeline.removeprefix("train-")
    assert planned.workers == translation.request["pods"]["workers"]


def test_an_edited_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for _ in range(2):
        translate_and_show([HAND_WRITTEN / "pytorch_job.yaml"], file)
    edited = file.read_text().replace("<BUCKET>", "mine")
    file.write_text(edited)
    with pytest.raises(KubetrainError, match="exists and differs"):
        translate_and_show([HAND_WRITTEN / "pytorch_job.yaml"], file)
    assert file.read_text() == edited
    with pytest.raises(KubetrainError, match="cannot be written"):
        translate_and_show([HAND_WRITTEN / "pytorch_job.yaml"], tmp_path / "missing" / "run.yaml")


def test_the_job_may_be_on_standard_input_and_its_runtime_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job, runtime = text_of("train_job").split("---\n")
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump({"kind": "List", "items": [yaml.safe_load(runtime)]}))
    (tmp_path / "stdin").write_text(job)
    with (tmp_path / "stdin").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        translate_and_show([Path("-"), tmp_path / "runtime.yaml"], None)
    assert parse_yaml(capsys.readouterr().out, "output") == {
        "pipeline": "train-pytorch",
        **translated(text_of("train_job")).request,
    }


def test_a_runtime_that_is_missing_is_said() -> None:
    job = text_of("train_job").split("---\n")[0]
    translation = translated(job)
    assert any("kubectl get clustertrainingruntime torch-gpu" in note for note in translation.notes)
    assert translation.request["pods"]["workers"] == 3
    with pytest.raises(InvalidSetting, match="framework of runtime ours is not known"):
        translated(job.replace("torch-gpu", "ours"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no job to translate"),
        ("kind: ConfigMap", "no job to translate"),
        (
            "{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: sweep}}",
            "RayCluster sweep has no counterpart: only a Py",
        ),
        ("{apiVersion: batch/v1, kind: Job}", "Job has no counterpart"),
        ("{apiVersion: kubeflow.org/v1beta2, kind: PyTorchJob}", "convert it to kubeflow.org/v1"),
        ("{apiVersion: kubeflow.org/v1alpha2, kind: MPIJob}", "convert it to kubeflow.org/v1 or kubeflow.org/v2beta1"),
        ("{apiVersion: kubeflow.org/v1, kind: MPIJob}", "Launcher.template has no containers"),
        (
            text_of("mpi_job").replace("MASTER_PORT", "OMPI_MCA_plm_rsh_agent"),
            "set by the operator.*remove it from pods.env",
        ),
        ("- a list", "document 1 of job.yaml is not a Kubernetes manifest"),
        ("kind: PyTorchJob\n  password: hidden\n", "job.yaml is not valid YAML.*line 2"),
        ("&a [*a]", "job.yaml is not valid YAML"),
        (text_of("tf_job") + "---\n" + text_of("pytorch_job"), "2 jobs .TFJob mnist, PyTorchJob flowers"),
        ("{apiVersion: kubeflow.org/v1, kind: TFJob, spec: 5}", "spec must be an object"),
        ("{apiVersion: kubeflow.org/v1, kind: TFJob, spec: {tfReplicaSpecs: {}}}", "no pods in the roles Chief"),
        (text_of("tf_job").replace("replicas: 2", "replicas: two"), "Worker.replicas must be a whole number"),
        (
            "a: &a [1]\n"
            + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in pairwise("abcdefghijk")),
            "job.yaml is not valid YAML",
        ),
        (text_of("tf_job").replace("replicas: 2", "replicas: $NUM_NODES"), r"'\$NUM_NODES', as in a template"),
        (
            re.sub("image: .*", "image: ${REGISTRY}:1", text_of("tf_job")),
            r"image is '\${REGISTRY}:1', as in a template",
        ),
        (text_of("pytorch_job").replace("nvidia.com/gpu: 2", "nvidia.com/gpu: "), "nvidia.com/gpu has no value: write"),
        (text_of("tf_job").replace("cpu: 2", "cpu: two"), "cpu 'two' is not a Kubernetes quantity"),
        (
            text_of("elastic_job").replace("minReplicas: 1", "minReplicas: 5"),
            "2 pods, but minReplicas is 5",
        ),
        (text_of("train_job").replace("torch: {}", "mpi: {}"), "runs mpi"),
        (text_of("train_job").replace("- name: node\n        groupName", "- name: nod\n        groupName"), ""),
    ],
)
def test_what_cannot_be_translated_is_refused(text: str, says: str) -> None:
    if not says:
        assert translated(text).request["pods"]["workers"] == 3  # its label says that it trains
        return
    with pytest.raises(InvalidSetting, match=says) as refused:
        translated(text)
    assert "hidden" not in str(refused.value)


def places_in(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(each for key, child in inner for each in places_in(child, (*place, key)))]


@pytest.mark.parametrize("name", NAMED)
def test_a_wrong_value_anywhere_ends_in_a_sentence(name: str) -> None:
    draw = random.Random(name)
    places = [each for each in places_in(list(yaml.safe_load_all(text_of(name)))) if len(each) > 1]
    for *parents, key in draw.sample(places, 12):
        manifests = json.loads(json.dumps(list(yaml.safe_load_all(text_of(name)))))
        parent = reduce(getitem, parents, manifests)
        parent[key] = draw.choice(["", "x", 5, 0, -3, 1.5, True, [], {}, [5], {"a": 1}, [{"a": 1}], [{"name": "q"}]])
        with contextlib.suppress(InvalidSetting):
            list(report(translated(json.dumps({"kind": "List", "items": manifests})), None))


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"no\.yaml cannot be read"):
        translate_and_show([tmp_path / "no.yaml"], None)


@pytest.mark.parametrize(
    ("command", "processes", "nodes", "restarts"),
    [
        (["torchrun", "--nproc_per_node=4", "--nnodes=1:3", "train.py", "--nproc-per-node=9"], "4", 1, None),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts=5", "train.py"], "2", 0, 5),
        (["sh", "-c", "cd /code && torchrun --nnodes 2 \\\n --nproc_per_node gpu -m package"], "gpu", 0, None),
        (["python", "train.py", "--nproc_per_node=4"], "", 0, None),
    ],
)
def test_options_of_torchrun(command: list[str], processes: str, nodes: int, restarts: int | None) -> None:
    found = torchrun_in(command)
    assert (found.processes, found.min_nodes, found.max_restarts) == (processes, nodes, restarts)
    assert found.is_used == (command[-1] != "--nproc_per_node=4")


@pytest.mark.parametrize(
    ("replacements", "processes", "note"),
    [
        ([('nprocPerNode: "2"', "nprocPerNode: auto"), ("--nproc_per_node=2, ", "")], None, ""),
        ([('nprocPerNode: "2"', "nprocPerNode: cpu"), ("--nproc_per_node=2, ", "")], None, "'cpu' processes"),
        ([('  nprocPerNode: "2"\n', ""), ("torchrun, --nproc_per_node=2", "python")], 1, "2 GPUs, but fewer"),
        ([('  nprocPerNode: "2"\n', ""), ("--nproc_per_node=2, ", "")], None, ""),
    ],
)
def test_processes_come_from_torchrun_or_the_job(
    replacements: list[tuple[str, str]], processes: int | None, note: str
) -> None:
    translation = changed("pytorch_job", *replacements)
    assert translation.request["pods"].get("processes") == processes
    assert any(note in each for each in translation.notes)


RENDEZVOUS = (
    "rdzvBackend: etcd-v2\n    rdzvHost: etcd\n    rdzvPort: 2379\n    rdzvId: id\n    rdzvConf: [{key: a, value: b}]"
)


@pytest.mark.parametrize(
    ("name", "replacements", "settings", "named"),
    [
        (
            "elastic_pytorch_job",
            [("rdzvBackend: c10d", RENDEZVOUS)],
            {"min_workers": 2},
            {"rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "key", "value"},
        ),
        ("elastic_pytorch_job", [("maxReplicas: 4", "maxReplicas: 8")], {"max_workers": None}, {"maxReplicas"}),
        ("elastic_pytorch_job", [("OnFailure", "Always")], {"restart_policy": None}, {"restartPolicy"}),
        (
            "elastic_pytorch_job",
            [("minReplicas: 2\n    maxReplicas: 4\n    ", ""), ("torchrun", "torchrun --nnodes=1:4")],
            {"min_workers": 1, "workers": 4},
            set(),
        ),
        ("elastic_pytorch_job", [("kueue.x-k8s.io/queue-name", "team")], {"scheduler": None}, {"team", "suspend"}),
        (
            "elastic_pytorch_job",
            [("capabilities: {add: [IPC_LOCK]}", "")],
            {"pod": pod_patch({}, {"resources": {"limits": {"rdma/hca": "1"}}})},
            set(),
        ),
        (
            "elastic_pytorch_job",
            [('rdma/hca: "1"', 'rdma/hca: "1", rdma/ib: 2')],
            {"rdma": {"rdma/hca": 1, "rdma/ib": 2}},
            set(),
        ),
        ("elastic_pytorch_job", [("securityContext", "oddContext")], {"rdma": None}, {"add"}),
        ("elastic_job", [("  minReplicas: 1\n  maxReplicas: 3\n", "")], {"workers": 2, "min_workers": None}, set()),
        ("elastic_job", [("  minReplicas: 1\n", "  backoffLimit: 7\n")], {"max_restarts": 7}, set()),
        ("pytorch_job", [("runAsUser: 1000", "runAsUser: 0")], {"user": None}, {"runAsUser", "runAsGroup", "fsGroup"}),
        (
            "pytorch_job",
            [("serviceAccountName: trainer", "automountServiceAccountToken: true")],
            {},
            {"automountServiceAccountToken"},
        ),
        (
            "pytorch_job",
            [("ttlSecondsAfterFinished: 86400", "ttlSecondsAfterFinished: 0")],
            {"ttl_seconds": None},
            {"ttlSecondsAfterFinished"},
        ),
        ("pytorch_job", [("sizeLimit: 16Gi", "")], {"shm_size": None}, set()),
        ("pytorch_job", [("NCCL_DEBUG", "NCCL_TIMEOUT")], {"nccl": None}, {"value"}),
        ("pytorch_job", [("NCCL_DEBUG", "PET_NNODES")], {"nccl": None}, {"value"}),
        (
            "pytorch_job",
            [
                ("nvidia.com/gpu: 2}", "nvidia.com/mig-1g.10gb: 2}"),
                ("nvidia.com/gpu: 2,", "nvidia.com/mig-1g.10gb: 2,"),
            ],
            {"gpus": 2, "gpu_resource": "nvidia.com/mig-1g.10gb"},
            set(),
        ),
        (
            "pytorch_job",
            [
                ("runtimeClassName: nvidia", "schedulerName: scheduler-plugins-scheduler"),
                ("backoffLimit: 4", "schedulingPolicy: {scheduleTimeoutSeconds: 60, minAvailable: 2}"),
            ],
            {"scheduler": "scheduler-plugins", "start_seconds": 60},
            {"minAvailable"},
        ),
        ("train_job", [], {"scheduler": "scheduler-plugins", "start_seconds": 120}, set()),
        (
            "train_job",
            [("coscheduling: {scheduleTimeoutSeconds: 120}", "volcano: {}")],
            {"scheduler": "volcano", "start_seconds": None},
            set(),
        ),
        (
            "pytorch_job",
            [("runtimeClassName: nvidia", "schedulerName: bin-packing")],
            {"scheduler": None, "pod": pod_patch({"schedulerName": "bin-packing"})},
            set(),
        ),
        (
            "train_job",
            [
                ("torch: {}", "torch: {elasticPolicy: {minNodes: 2, maxNodes: 3, maxRestarts: 4}}"),
                ("restartPolicy: Never", "restartPolicy: OnFailure"),
            ],
            {"min_workers": 2, "max_restarts": 4},
            {"maxRestarts"},
        ),
        (
            "train_job",
            [("s3://datasets/flowers", "hf://flowers")],
            {"uri": "s3://<BUCKET>/<DATASET>"},
            {"storageUri"},
        ),
        (
            "train_job",
            [("framework: torch}", "framework: tensorflow}"), ("torch: {}", ""), ("numProcPerNode: 2", "")],
            {"workers": 3},
            set(),
        ),
    ],
)
def test_fields_become_settings_or_are_named(
    name: str, replacements: list[tuple[str, str]], settings: dict[str, Any], named: set[str]
) -> None:
    translation = changed(name, *replacements)
    found = {**translation.request["data"], **translation.request["pods"]}
    assert contains(found, settings), found
    before = {each.path for each in translated(text_of(name)).unmapped}
    assert {path.rpartition(".")[2] for path in unmapped(translation).keys() - before} == named


def exit_code_of(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr("sys.argv", ["kubetrain", "translate", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_command_ends_with_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job, file = HAND_WRITTEN / "tf_job.yaml", tmp_path / "run.yaml"
    assert exit_code_of(monkeypatch, job, "--output", file) == 0
    assert read_source(str(file)).request["pods"]["workers"] == 3
    file.write_text("{}")
    assert exit_code_of(monkeypatch, job, "--output", file) == 1
    assert exit_code_of(monkeypatch, job, "--output", tmp_path / "run") == 2, "kubetrain run would not read it"
    capsys.readouterr()
    file.write_text("{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: sweep}}")
    assert exit_code_of(monkeypatch, file) == 2
    assert capsys.readouterr().err.startswith("error: RayCluster sweep has no counterpart")


def test_pods_of_the_old_job_that_something_waits_for_are_named() -> None:
    waits = "{name: wait, image: busybox, command: [sh, -c, 'until nslookup flowers-master-0; do :; done']}"
    translation = changed("pytorch_job", ("runtimeClassName: nvidia", f"initContainers: [{waits}]"))
    assert "flowers-master-0: pods of a run have other names" in " ".join(translation.notes)
    assert "pods of a run" not in " ".join(translated(text_of("pytorch_job")).notes)


def test_a_variable_of_the_main_container_follows_its_name() -> None:
    memory = "{name: MEMORY, valueFrom: {resourceFieldRef: {containerName: pytorch, resource: limits.memory}}}"
    label = "metadata.labels['training.kubeflow.org/replica-index']"
    index = f'{{name: INDEX, valueFrom: {{fieldRef: {{fieldPath: "{label}"}}}}}}'
    translation = changed("pytorch_job", ("{name: NCCL_DEBUG, value: INFO}", f"{memory}\n            - {index}"))
    env = translation.request["pods"]["env"]
    assert env["MEMORY"] == {"resourceFieldRef": {"resource": "limits.memory"}}
    assert "INDEX is the value of a label that pods have only with pods.launcher=training-operator" in translation.notes


def test_arguments_with_the_names_of_settings_are_not_guessed_but_said() -> None:
    translation = translated(text_of("pytorch_job"))
    assert list(translation.request["train"]) == ["entry"]
    assert any("train.epochs, train.batch_size" in note for note in translation.notes)


def test_only_arguments_that_mean_the_same_are_like_settings() -> None:
    """`--data` is a path in most scripts, and a format in kubetrain."""
    assert sorted(like_settings(["--data", "/mnt/data", "--lr=0.1", "--epochs", "3"])) == [
        "train.epochs",
        "train.learning_rate",
    ]
    assert set(SHORT_NAMES.values()) | OTHER_MEANING <= set(TrainConfig.names())


def test_the_report_says_what_to_do_next() -> None:
    lines = list(report(translated(text_of("tf_job")), Path("mine.yaml")))
    assert "  fill in data.uri and model.uri" in lines
    assert "  kubetrain submit mine.yaml" in lines


def test_a_job_printed_by_kubectl_is_the_same() -> None:
    exported = job_in("pytorch_job")
    exported["metadata"] |= {
        "uid": "0a1b",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET},
    }
    exported["status"] = {"conditions": []}
    assert translated(json.dumps(exported)) == translated(text_of("pytorch_job"))
