"""The steps of the compiled pipelines, run in pods as in Kubeflow Pipelines, with its stock account's permissions."""

import json
from pathlib import Path

import pytest

from kubetrain_components.bring_code.pack import pack_code, upload_code
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.definitions.images import TRAINERS
from support.cluster import ENDPOINT, Bucket
from support.kfp_steps import PipelineRun, StepFailed, asked
from support.rights import connect_for_runs, grant_launch

pytestmark = pytest.mark.cluster
CORE = pytest.mark.core

SECRET = Bucket.credentials["AWS_SECRET_ACCESS_KEY"]
UNTIL_EVALUATED = ("sync-dataset", "launch-training", "collect-checkpoint", "evaluate-model")
SHORT = {"epochs": 3}


@pytest.fixture
def api(namespace: str) -> KubernetesApi:
    return connect_for_runs(namespace)


def everything_created(api: KubernetesApi) -> list[str]:
    kinds = {"v1": ["persistentvolumeclaims"], "batch/v1": ["jobs"], "kubeflow.org/v1": ["pytorchjobs", "tfjobs"]}
    return [
        found["metadata"]["name"]
        for group, plurals in kinds.items()
        for plural in plurals
        for found in api.get(api.path(group, plural))["items"]
    ]


def everything_shown(api: KubernetesApi, run: PipelineRun) -> str:
    """Return all outputs and logs of the run and all objects of the cluster, except the secret itself."""
    kinds = {
        "v1": ["pods", "persistentvolumeclaims", "events", "configmaps"],
        "batch/v1": ["jobs"],
        "kubeflow.org/v1": ["pytorchjobs", "tfjobs"],
    }
    objects = [api.get(api.path(group, plural)) for group, plurals in kinds.items() for plural in plurals]
    assert sum(len(each["items"]) for each in objects) > 5
    return json.dumps([objects, run.outputs, run.logs])


def everything_published(bucket: Bucket, prefix: str) -> str:
    keys = bucket.keys(prefix)
    assert keys
    return "".join(bucket.get(key).decode(errors="replace") for key in keys)


@pytest.mark.parametrize(
    ("framework", "launcher"),
    [
        pytest.param("pytorch", Launcher.AUTO, marks=CORE),
        ("pytorch", Launcher.TRAINER),
        ("pytorch", Launcher.JOB),
        pytest.param("tensorflow", Launcher.AUTO, marks=CORE),
        ("tensorflow", Launcher.TRAINER),
        ("tensorflow", Launcher.JOB),
    ],
)
def test_from_s3_to_a_promoted_model(api: KubernetesApi, digits: Bucket, framework: str, launcher: Launcher) -> None:
    if launcher is Launcher.TRAINER:
        grant_launch(api)  # the stock account's permissions are older than TrainJobs
    models, pods = digits.uri(f"{launcher}/models"), {"launcher": launcher}
    wanted = asked(digits, model={"uri": models, "gate": "accuracy>=1"}, pods=pods, train=SHORT)
    run = PipelineRun(api, f"train_{framework}", f"run-{framework}", wanted)
    synced = run.run("sync-dataset")["parameterValues"]
    place = synced["dataset_place"]
    assert place["sub_path"] == f"versions/{place['digest']}/data"
    trained = run.run("launch-training", env=[{"name": "SET_ON_TASK", "value": "1"}])["parameterValues"]
    assert trained["image"] == TRAINERS[framework]
    assert trained["placement"]["env"] == {"SET_ON_TASK": "1"}
    assert "2 processes" in run.logs["launch-training"]
    taken = Launcher.TRAINING_OPERATOR if launcher is Launcher.AUTO else launcher
    assert f"launcher: {taken} (" in run.logs["launch-training"]

    (model,) = run.run("collect-checkpoint")["artifacts"]["model"]["artifacts"]
    assert model["metadata"]["framework"] == framework
    evaluated = run.run("evaluate-model")["artifacts"]
    accuracy = evaluated["test_metrics"]["artifacts"][0]["metadata"]["accuracy"]
    assert accuracy > 0.9
    assert len(evaluated["confusion_matrix"]["artifacts"][0]["metadata"]["confusionMatrix"]["rows"]) == 10

    if accuracy < 1:
        with pytest.raises(StepFailed, match=r"test accuracy 0\.\d+ is below 1\.0000 by"):
            run.run("promote-model")
    synced["run"]["model"]["gate"] = "accuracy>=0.9"  # as if the run had been asked for with this gate
    run.run("evaluate-model")
    uri = run.run("promote-model")["parameterValues"]["uri"]
    latest = json.loads(digits.get(f"{launcher}/models/latest.json"))
    assert uri.endswith(f"/{latest['version']}/")
    assert (latest["framework"], latest["image"]) == (framework, TRAINERS[framework])
    assert latest["image_id"], "an image that was loaded into the node by hand has only an ID"
    assert SECRET not in everything_shown(api, run) + everything_published(digits, f"{launcher}/models/")

    unchanged = asked(digits, model={"uri": models}, pods=pods, train={**SHORT, "skip_unchanged": True})
    again = PipelineRun(api, f"train_{framework}", "run-again", unchanged)
    assert again.run("sync-dataset")["parameterValues"]["reused"]["uri"] == uri
    assert f"nothing to train: {uri}" in again.logs["sync-dataset"]


@CORE
def test_unusable_settings_are_refused_before_anything_is_created(api: KubernetesApi, digits: Bucket) -> None:
    unusable = asked(digits, pods={"env": {"WORLD_SIZE": "8"}})
    with pytest.raises(StepFailed, match="WORLD_SIZE is set by the operator"):
        PipelineRun(api, "train_pytorch", "run-refused", unusable).run("sync-dataset")
    assert everything_created(api) == []


@CORE
def test_a_missing_module_fails_the_first_step_before_the_dataset_is_read(api: KubernetesApi, digits: Bucket) -> None:
    missing = asked(digits, data={"uri": digits.uri("absent")}, model={"name": "absent.task:build"})
    with pytest.raises(StepFailed, match=r"cannot import 'absent\.task' .*No module named 'absent'"):
        PipelineRun(api, "train_pytorch", "run-missing", missing).run("sync-dataset")
    assert everything_created(api) == []


OWN_SCRIPT = """
from pathlib import Path

from torch import distributed

import layers
from kubetrain_trainer import session

distributed.init_process_group("gloo")
session.log(1, answer=layers.ANSWER)
session.save(1, lambda folder: (folder / "state").touch())
session.finish(lambda folder: (folder / "model").write_text(Path(layers.__file__).parent.as_posix()), {"accuracy": 1})
"""


def bring(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, folder: Path, **files: str) -> str:
    """Upload a folder of these modules as `submit --code` does, and return the digest of its archive."""
    for name, value in Bucket.credentials.items():
        monkeypatch.setenv(name, value)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    code = pack_code(folder)
    upload_code(code, open_store(bucket.uri("models"), ENDPOINT))
    return code.digest


@CORE
def test_a_folder_of_code_from_s3_to_a_published_model(
    api: KubernetesApi, digits: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = bring(digits, monkeypatch, tmp_path, train=OWN_SCRIPT, layers="ANSWER = 42")
    wanted = asked(digits, model={"gate": "accuracy>=0.5"}, train={"entry": {"script": "train.py"}, "code": digest})
    run = PipelineRun(api, "train_pytorch", "run-code", wanted)
    for step in ("sync-dataset", "launch-training", "collect-checkpoint", "evaluate-model", "promote-model"):
        run.run(step)
    assert "[kubetrain] step=1 answer=42" in run.logs["launch-training"]
    published = f"models/{json.loads(digits.get('models/latest.json'))['version']}"
    assert digits.get(f"{published}/model") == b"/code"
    assert json.loads(digits.get(f"{published}/model.json"))["code"] == digest
    assert SECRET not in everything_shown(api, run) + everything_published(digits, "models/")


@CORE
def test_a_module_that_the_code_lacks_fails_the_first_step(
    api: KubernetesApi, digits: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = bring(digits, monkeypatch, tmp_path, train=OWN_SCRIPT)
    train = {"entry": {"script": "train.py"}, "code": digest}
    wanted = asked(digits, data={"uri": digits.uri("absent")}, train=train)
    with pytest.raises(StepFailed, match=r"train\.py.*layers"):
        PipelineRun(api, "train_pytorch", "run-lack", wanted).run("sync-dataset")
    assert everything_created(api) == []


@CORE
def test_a_training_that_starts_from_the_latest_model_and_spoils_it_is_not_published(
    api: KubernetesApi, digits: Bucket
) -> None:
    compared, pods = {"uri": digits.uri("compared"), "gate": "not worse than latest by 0.005"}, {"workers": 1}
    first = PipelineRun(api, "train_pytorch", "run-first", asked(digits, model=compared, pods=pods, train=SHORT))
    for step in (*UNTIL_EVALUATED, "promote-model"):
        first.run(step)
    assert "no model is published yet to compare with" in first.logs["evaluate-model"]
    latest = digits.get("compared/latest.json")
    version, accuracy = json.loads(latest)["version"], json.loads(latest)["metrics"]["accuracy"]

    spoiling = {"max_steps": 3, "schedule": "constant", "learning_rate": 30}
    again = asked(digits, model={**compared, "start": compared["uri"]}, pods=pods, train=spoiling)
    worse = PipelineRun(api, "train_pytorch", "run-worse", again)
    for step in UNTIL_EVALUATED:
        worse.run(step)
    assert "the training starts from /output/.weights/versions/" in worse.logs["launch-training"]
    shown = worse.outputs["evaluate-model"]["artifacts"]["test_metrics"]["artifacts"][0]["metadata"]
    assert shown["latest_accuracy"] == pytest.approx(accuracy, abs=0.01)
    assert f"of the latest model, {version}: " in worse.logs["evaluate-model"]
    with pytest.raises(StepFailed, match=rf"test accuracy .* is worse by .* of the latest model, {version}"):
        worse.run("promote-model")
    assert digits.get("compared/latest.json") == latest
    assert SECRET not in everything_shown(api, worse) + everything_published(digits, "compared/")


@CORE
def test_a_failed_training_fails_its_step_with_the_cause(api: KubernetesApi, digits: Bucket) -> None:
    failing = asked(digits, pods={"workers": 1}, train={"epochs": 1, "learning_rate": 1e30})
    run = PipelineRun(api, "train_pytorch", "run-failing", failing)
    run.run("sync-dataset")
    with pytest.raises(StepFailed, match=r"launch_training failed: master-0: .*lower train\.learning_rate"):
        run.run("launch-training")


@CORE
def test_a_dataset_alone(api: KubernetesApi, digits: Bucket) -> None:
    run = PipelineRun(api, "sync_only", "run-sync", {"data": asked(digits)["data"], "storage": {"staging_size": "1Gi"}})
    dataset = run.run("sync-dataset")["parameterValues"]["dataset_place"]
    assert dataset["claim"] in everything_created(api)
    assert "kubetrain-output" not in everything_created(api)
