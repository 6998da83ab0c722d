"""Which launcher a training gets on a cluster, and that it keeps it while the cluster changes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubetrain_components.jobs.annotations import FAILED, SUCCEEDED, VERDICT_ANNOTATION
from kubetrain_components.jobs.job_kinds import TRAINER_API, TRAINING_API, JobKind
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.launch_training.launch import with_launcher
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig
from support.api_server import ApiServer, answer
from support.manifests import PLAIN

OPERATOR, TRAINER = (TRAINING_API, "pytorchjobs", "tfjobs"), (TRAINER_API, "trainjobs")
NOT_ALLOWED = 'trainjobs is forbidden: User "me" cannot list resource "trainjobs" in API group "x"'
TRAINING = TrainingJob(
    framework="pytorch",
    config=TrainConfig(),
    pipeline="train-pytorch",
    run_id="r1",
    data_dir=Path("/data"),
    output_dir=Path("/output"),
    placement=PLAIN,
)


@pytest.fixture
def backend(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesBackend]:
    """A cluster that has neither operator."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    server.serve("batch/v1", "cronjobs", "jobs")
    with KubernetesBackend.connect() as backend:
        yield backend


def chosen(backend: KubernetesBackend, framework: str = "pytorch", wanted: Launcher = Launcher.AUTO) -> Launcher:
    return backend.launcher(wanted, framework, TRAINING.identity)[0]


@pytest.mark.parametrize(
    ("served", "framework", "launcher", "why"),
    [
        ((OPERATOR, TRAINER), "pytorch", Launcher.TRAINING_OPERATOR, "the cluster has PyTorchJob"),
        ((OPERATOR, TRAINER), "tensorflow", Launcher.TRAINING_OPERATOR, "the cluster has TFJob"),
        ((OPERATOR,), "tensorflow", Launcher.TRAINING_OPERATOR, "the cluster has TFJob"),
        ((TRAINER,), "pytorch", Launcher.TRAINER, "the cluster has TrainJob"),
        ((TRAINER,), "tensorflow", Launcher.TRAINER, "the cluster has TrainJob"),
        (((TRAINING_API, "mpijobs", "tfjobs"), TRAINER), "pytorch", Launcher.TRAINER, "the cluster has TrainJob"),
        (((TRAINING_API, "pytorchjobs"),), "tensorflow", Launcher.JOB, "the cluster has Job"),
        (((TRAINER_API, "trainingruntimes"),), "pytorch", Launcher.JOB, "the cluster has Job"),
        ((), "pytorch", Launcher.JOB, "the cluster has Job"),
    ],
)
def test_auto_takes_the_first_that_the_cluster_has_for_the_framework(
    server: ApiServer,
    backend: KubernetesBackend,
    served: tuple[tuple[str, ...], ...],
    framework: str,
    launcher: Launcher,
    why: str,
) -> None:
    for each in served:
        server.serve(*each)
    assert backend.launcher(Launcher.AUTO, framework, TRAINING.identity) == (launcher, why)


@pytest.mark.parametrize("wanted", LAUNCHERS)
def test_one_that_is_set_is_taken_if_the_cluster_has_it(
    server: ApiServer, backend: KubernetesBackend, wanted: Launcher
) -> None:
    for each in (OPERATOR, TRAINER):
        server.serve(*each)
    assert backend.launcher(wanted, "pytorch", TRAINING.identity) == (wanted, "as set")


@pytest.mark.parametrize(
    ("wanted", "kind"), [(Launcher.TRAINING_OPERATOR, "PyTorchJob"), (Launcher.TRAINER, "TrainJob")]
)
def test_one_that_the_cluster_lacks_is_refused_before_the_dataset_is_synced(
    server: ApiServer, backend: KubernetesBackend, wanted: Launcher, kind: str
) -> None:
    with pytest.raises(InvalidSetting, match=f"launcher is '{wanted}', but the cluster has no {kind}"):
        chosen(backend, wanted=wanted)


def test_one_that_is_set_never_runs_a_training_beside_another(server: ApiServer, backend: KubernetesBackend) -> None:
    """Both would write checkpoints to the same folder."""
    for each in (OPERATOR, TRAINER):
        server.serve(*each)
    handle = backend.create(with_launcher(TRAINING, backend).to_job())
    for wanted in (Launcher.JOB, Launcher.TRAINER):
        with pytest.raises(InvalidSetting, match=f"{handle.name} of launcher training-operator"):
            chosen(backend, wanted=wanted)
    assert chosen(backend, wanted=Launcher.TRAINING_OPERATOR) is Launcher.TRAINING_OPERATOR
    for verdict in (SUCCEEDED, FAILED):  # pods of a failed job may still run
        backend.annotate(handle, {VERDICT_ANNOTATION: verdict})
        with pytest.raises(InvalidSetting, match="delete that job"):
            chosen(backend, wanted=Launcher.JOB)
    backend.delete(handle)
    assert chosen(backend, wanted=Launcher.JOB) is Launcher.JOB


@pytest.mark.parametrize(
    ("before", "gained"),
    [((), (OPERATOR, TRAINER)), ((), (TRAINER,)), ((TRAINER,), (OPERATOR,)), ((OPERATOR,), (TRAINER,))],
)
def test_a_training_keeps_its_launcher_when_the_cluster_gains_others(
    server: ApiServer,
    backend: KubernetesBackend,
    before: tuple[tuple[str, ...], ...],
    gained: tuple[tuple[str, ...], ...],
) -> None:
    for each in before:
        server.serve(*each)
    first = with_launcher(TRAINING, backend)
    backend.create(first.to_job())
    for each in gained:
        server.serve(*each)
    again = backend.launcher(Launcher.AUTO, "pytorch", TRAINING.identity)
    assert again == (first.launcher, "it runs this training already")
    assert backend.find(with_launcher(TRAINING, backend).to_job()) is not None
    best = Launcher.TRAINING_OPERATOR if OPERATOR in (*before, *gained) else Launcher.TRAINER
    assert with_launcher(replace(TRAINING, run_id="r2"), backend).launcher is best


def test_a_later_attempt_keeps_the_launcher_too(server: ApiServer, backend: KubernetesBackend) -> None:
    job = replace(TRAINING, launcher=Launcher.JOB).to_job()
    backend.create(replace(job, identity=job.identity.next_attempt()))
    server.serve(*OPERATOR)
    assert chosen(backend) is Launcher.JOB


def test_the_job_of_another_stage_of_the_run_decides_nothing(server: ApiServer, backend: KubernetesBackend) -> None:
    evaluation = replace(TRAINING.identity, stage="evaluate_model")
    backend.create(replace(replace(TRAINING, launcher=Launcher.JOB).to_job(), identity=evaluation))
    server.serve(*OPERATOR)
    assert chosen(backend) is Launcher.TRAINING_OPERATOR


def test_the_job_of_another_pipeline_with_the_same_run_id_decides_nothing(
    server: ApiServer, backend: KubernetesBackend
) -> None:
    other = replace(TRAINING.identity, pipeline="another")
    assert other.selector == TRAINING.identity.selector
    backend.create(replace(replace(TRAINING, launcher=Launcher.JOB).to_job(), identity=other))
    server.serve(*OPERATOR)
    assert chosen(backend) is chosen(backend, wanted=Launcher.TRAINING_OPERATOR) is Launcher.TRAINING_OPERATOR


@pytest.mark.usefixtures("backend")
def test_a_cluster_that_loses_a_kind_has_lost_its_jobs(server: ApiServer) -> None:
    def chosen_by_a_new_launcher(framework: str = "pytorch") -> Launcher:
        with KubernetesBackend.connect() as backend:  # an earlier one waits for a group that was there before
            return chosen(backend, framework)

    server.serve(*OPERATOR)
    server.serve(*TRAINER)
    assert chosen_by_a_new_launcher() is Launcher.TRAINING_OPERATOR
    server.serve(TRAINING_API)
    assert chosen_by_a_new_launcher() is Launcher.TRAINER
    server.serve(TRAINING_API, "tfjobs")
    assert chosen_by_a_new_launcher() is Launcher.TRAINER
    assert chosen_by_a_new_launcher("tensorflow") is Launcher.TRAINING_OPERATOR
    server.serve(TRAINER_API)
    assert chosen_by_a_new_launcher() is Launcher.JOB


def test_a_kind_whose_jobs_the_account_may_not_list_does_not_stop_the_search(
    server: ApiServer, backend: KubernetesBackend
) -> None:
    """A Role of an older release does not name the kinds of newer ones."""
    backend.create(replace(TRAINING, launcher=Launcher.JOB).to_job())
    server.serve(*TRAINER)
    server.fail("/trainjobs?labelSelector", answer(403, NOT_ALLOWED), times=2)
    assert chosen(backend) is Launcher.JOB
    server.remove(f"/apis/batch/v1/namespaces/tests/jobs/{TRAINING.identity.name}")
    assert chosen(backend) is Launcher.TRAINER


def test_a_server_that_fails_for_a_moment_is_asked_again(server: ApiServer, backend: KubernetesBackend) -> None:
    """Otherwise a training could begin a second time, with another launcher."""
    backend.create(replace(TRAINING, launcher=Launcher.TRAINING_OPERATOR).to_job())
    server.serve(*OPERATOR)
    server.serve(*TRAINER)
    server.fail("GET /apis/kubeflow.org/v1", answer(503, "busy"), times=2)
    assert chosen(backend) is Launcher.TRAINING_OPERATOR


def test_the_launcher_is_said_at_once_and_noted_on_the_job(
    server: ApiServer, backend: KubernetesBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    server.serve(*TRAINER)
    job = with_launcher(TRAINING, backend).to_job()
    assert capsys.readouterr().out == "launcher: trainer (the cluster has TrainJob)\n"
    handle = backend.create(job)
    assert handle.kind is JobKind.TRAIN_JOB
    state = backend.find(job)
    assert state is not None and state.annotations["kubetrain/launcher"] == "trainer"
