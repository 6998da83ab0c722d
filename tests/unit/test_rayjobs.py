"""A RayJob: what KubeRay is asked for, what its states mean, what is refused, and how the log of a worker is read."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_components.expose_dataset.kubernetes_claims import evidence_of_use
from kubetrain_components.jobs.conditions import conditions_of
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.kubernetes.leaked import leaked_companions
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import INSTANCE_LABEL
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import job_manifest, manifests_of
from kubetrain_components.jobs.kubernetes.state import job_state
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.own_code.ray_job import RayJob, without_prefix
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import StopSignal
from support.manifests import PLAIN, ray
from support.translated import changed, settings_of, text_of, translated, unmapped


def training(**changes: Any) -> TrainingJob:
    entry: dict[str, Any] = {"script": "train.py"}
    usual = TrainingJob(
        framework="pytorch",
        config=TrainConfig(entry=entry),
        pipeline="digits",
        run_id="r1",
        data_dir=Path("/data"),
        output_dir=Path("/output/r1"),
        launcher=Launcher.RAY,
        placement=Placement(image="ray:1", cpu="4", memory="16Gi", gpus=1),
    )
    return replace(usual, **changes)


def templates(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterSpec"]
    groups = {each["groupName"]: each["template"] for each in cluster["workerGroupSpecs"]}
    return {
        "submitter": manifest["spec"]["submitterPodTemplate"],
        "head": cluster["headGroupSpec"]["template"],
        **groups,
    }


def test_each_worker_has_a_group_so_that_a_pod_has_the_number_of_the_one_it_replaces() -> None:
    (manifest,) = manifests_of(training().to_job())
    made = templates(manifest)
    assert list(made) == ["submitter", "head", "worker-0", "worker-1"]
    numbers = [each["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for each in made.values()]
    assert numbers == ["0", "0", "0", "1"]
    assert {each["metadata"]["labels"]["kubetrain/job"] for each in made.values()} == {manifest["metadata"]["name"]}
    assert {each["metadata"]["labels"][INSTANCE_LABEL] for each in made.values()} == {"0" * 8}


def test_only_workers_have_gpus_and_the_submitter_is_small() -> None:
    made = templates(job_manifest(training().to_job()))
    requests = {name: each["spec"]["containers"][0]["resources"]["requests"] for name, each in made.items()}
    assert requests["worker-0"] == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    assert requests["head"] == {"cpu": "4", "memory": "16Gi"}
    assert requests["submitter"] == {"cpu": "500m", "memory": "1Gi"}


def test_the_submitter_alone_has_a_command_and_nothing_restarts_by_itself() -> None:
    manifest = job_manifest(training().to_job())
    made = templates(manifest)
    commands = {name: each["spec"]["containers"][0].get("command", []) for name, each in made.items()}
    assert commands["submitter"][:4] == [
        *("python", "-m", "kubetrain_trainer.own_code.ray_job"),
        "kubetrain_trainer.pytorch_ddp.own_code",
    ]
    assert [commands[name] for name in ("head", "worker-0", "worker-1")] == [[], [], []]  # that of `ray start`
    assert {each["spec"]["restartPolicy"] for each in made.values()} == {"Never"}
    assert (manifest["spec"]["backoffLimit"], manifest["spec"]["submitterConfig"]) == (0, {"backoffLimit": 0})


def test_the_head_keeps_the_label_of_its_service_and_runs_no_worker() -> None:
    manifest = job_manifest(training().to_job())
    head = manifest["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert "app.kubernetes.io/name" not in head["template"]["metadata"]["labels"]
    assert head["rayStartParams"] == {"num-cpus": "0", "object-store-memory": str(2**29)}
    probes = {name: each["spec"]["containers"][0].get("readinessProbe") for name, each in templates(manifest).items()}
    assert probes["submitter"] is None
    assert [probes[name]["httpGet"]["port"] for name in ("head", "worker-0")] == [8265, 52365]


@pytest.mark.parametrize(
    ("deployment", "status", "phase", "message"),
    [
        ("", "", Phase.PENDING, ""),
        ("Initializing", "", Phase.PENDING, ""),
        ("Running", "RUNNING", Phase.RUNNING, ""),
        ("Complete", "SUCCEEDED", Phase.SUCCEEDED, "said"),
        ("Complete", "STOPPED", Phase.FAILED, "said"),
        ("Failed", "FAILED", Phase.FAILED, "said"),
        ("ValidationFailed", "", Phase.FAILED, "said"),
    ],
)
def test_the_phase_of_a_rayjob(deployment: str, status: str, phase: Phase, message: str) -> None:
    manifest = job_manifest(ray())
    manifest["metadata"]["uid"] = "1"
    manifest["status"] = {"jobDeploymentStatus": deployment, "jobStatus": status, "message": "said"}
    state = job_state(JobKind.RAY_JOB, manifest, [])
    assert (state.phase, state.message) == (phase, message)


@pytest.mark.parametrize(("status", "kind"), [("SUCCEEDED", "Complete"), ("STOPPED", "Failed")])
def test_those_who_clean_up_know_when_a_rayjob_has_ended(status: str, kind: str) -> None:
    ended = "2026-11-30T07:03:49Z"
    job = {"status": {"jobDeploymentStatus": "Complete", "jobStatus": status, "endTime": ended}}
    expected = [{"type": kind, "status": "True", "message": "", "lastTransitionTime": ended}]
    assert conditions_of(job) == expected
    assert evidence_of_use({"metadata": {}, **job})["status"] == {"conditions": expected}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"placement": replace(PLAIN, host_network=True)}, "cannot share a node's network"),
        ({"placement": replace(PLAIN, scheduler="volcano")}, "does not queue a RayJob"),
        ({"placement": replace(PLAIN, scheduler="kueue", queue="q")}, "does not queue a RayJob"),
        ({"min_workers": 1}, "a RayJob cannot be elastic: remove pods.min_workers"),
        ({"pipeline": "a" * 16, "run_id": "run-1"}, "the name of a RayJob has at most 47 characters"),
    ],
)
def test_what_a_rayjob_cannot_do_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        job_manifest(training(**changes).to_job())


def test_a_training_without_a_script_of_your_own_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"set train\.entry"):
        training(config=TrainConfig())


def test_no_service_of_another_job_counts_as_one_of_a_rayjob() -> None:
    api: Any = None
    assert leaked_companions(api, JobKind.RAY_JOB, [], api) == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("(RayTrainWorker pid=114, ip=10.88.1.5) [kubetrain] step=3 loss=2", "[kubetrain] step=3 loss=2"),
        ("(RayTrainWorker pid=114) saved step-3", "(RayTrainWorker pid=114) saved step-3"),
        ("[kubetrain] step=1", "[kubetrain] step=1"),
    ],
)
def test_progress_is_shown_as_its_worker_wrote_it(line: str, shown: str) -> None:
    assert without_prefix(line) == shown


class HeadThatBreaksOff:
    """What ray.job_submission, which tests do without, has for a job whose log breaks off within a line."""

    texts = (["one\ntw"], ["one\n", "two\nthe end, without a newline"])

    def __init__(self, _: str) -> None:
        self._texts = iter(self.texts)

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        texts = next(self._texts)
        for text in texts:
            yield text
        if texts is self.texts[0]:
            raise ConnectionError("broken")

    def get_job_info(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(status="SUCCEEDED", message="")


def test_no_line_of_the_log_is_lost(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = SimpleNamespace(JobSubmissionClient=HeadThatBreaksOff)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(job_submission=module))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    asyncio.run(RayJob("head", "job").follow())
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["one", "the log of the Ray job was cut (broken)", "two", "the end, without a newline"]


def test_a_script_in_another_thread_hears_no_signal() -> None:
    from threading import Thread

    seen: list[bool] = []

    def work() -> None:
        with StopSignal() as stop:
            seen.append(stop.is_requested)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_hand_written_rayjob_becomes_a_run_with_ray() -> None:
    translation = translated(text_of("ray_job"))
    assert translation.pipeline == "train-pytorch"
    taken = {"pods.launcher": "ray", "pods.workers": 2, "pods.gpus": 1, "pods.cpu": "4", "pods.env": {"LEVEL": "3"}}
    assert settings_of(translation) | taken == settings_of(translation)
    assert translation.request["train"]["entry"] == {"script": "/app/train.py", "args": ["--epochs", "3"]}
    assert translation.missing == ["data.uri", "model.uri"]
    head = "spec.rayClusterSpec.headGroupSpec.template.spec.containers[ray].resources"
    group = "spec.rayClusterSpec.workerGroupSpecs[0]"
    assert unmapped(translation) == {
        "metadata.name": '"digits"',
        "spec.backoffLimit": "2",
        "spec.runtimeEnvYAML.pip": '["tqdm"]',
        "spec.runtimeEnvYAML.env[API_TOKEN].value": '"…"',
        f"{group}.maxReplicas": "5",
        f"{group}.rayStartParams.num-gpus": '"1"',
        **{f"{head}.{kind}.cpu": '"1"' for kind in ("limits", "requests")},
        **{f"{head}.{kind}.memory": '"4Gi"' for kind in ("limits", "requests")},
    }


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("python /app/train.py", "python '/app/train.py", "entrypoint is not a command"),
        ("workerGroupSpecs:", "others:", "has no workerGroupSpecs"),
        ("pip: [tqdm]", "pip: [", "runtimeEnvYAML is not valid YAML"),
    ],
)
def test_a_rayjob_that_is_not_valid_is_refused(old: str, new: str, problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        changed("ray_job", (old, new))
