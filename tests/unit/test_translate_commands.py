"""`kubetrain translate` for jobs that `kubetrain train` runs: the printed command starts the same pods."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from kubetrain_pipelines.cli.main import main
from kubetrain_pipelines.cli.translate import report, translate_and_show
from kubetrain_pipelines.translate.translation import Translation
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

FIELDS = {
    "mpi_job": "mpiReplicaSpecs",
    "mpi_operator_job": "mpiReplicaSpecs",
    "xgboost_job": "xgbReplicaSpecs",
    "paddle_job": "paddleReplicaSpecs",
    "jax_job": "jaxReplicaSpecs",
}
OPERATOR, TRAINER, ALONE = "training-operator", "trainer", "job"
POSSIBLE = [
    *((name, OPERATOR) for name in FIELDS),
    *((name, TRAINER) for name in FIELDS if name != "xgboost_job"),  # which Volcano starts as a gang
    *((name, ALONE) for name in ("paddle_job", "jax_job")),
]
MAIN_CONTAINERS = {("mpi_job", "Worker"): 1}
"""The main container, if it is not the first."""


def printed(translation: Translation) -> str:
    lines = "\n".join(report(translation, Path("job.yaml")))
    return lines[lines.index("kubetrain train job.yaml --cluster") :]


def in_shell(command: str) -> list[str]:
    """The words that a shell passes to kubetrain."""
    script = f"kubetrain() {{ printf '%s\\0' \"$@\"; }}\n{command}"
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.split("\0")[:-1]


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Created":
    monkeypatch.chdir(tmp_path)
    return Created(monkeypatch, capsys)


class Created:
    """What the printed command would create, with the file that translate writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def by(self, name: str, launcher: str) -> list[Manifest]:
        translate_and_show([HAND_WRITTEN / f"{name}.yaml"], Path("job.yaml"))
        self._capsys.readouterr()
        words = in_shell(printed(translated(text_of(name))))
        options = ["--dry-run", "--set", f"pods.launcher={launcher}"]
        self._monkeypatch.setattr("sys.argv", ["kubetrain", words[0], *options, *words[1:]])
        main()
        return [each for each in yaml.safe_load_all(self._capsys.readouterr().out) if each]


def pods_of(role: str, manifests: list[Manifest]) -> list[Manifest]:
    pods = templates_in(manifests)
    return [each for each in pods if each["metadata"]["labels"]["kubetrain/role"] == role.lower()] or pods


def fields_wanted(name: str, role: str, template: Manifest) -> dict[str, str]:
    """The fields of a hand-written pod that are not named, except its command."""
    container = template["spec"]["containers"][MAIN_CONTAINERS.get((name, role), 0)]["name"]
    named = unmapped(translated(text_of(name)))
    paths = {re.sub(r".*?\.template\.", "", path).replace(f"[{container}]", "[main]") for path in named}
    wanted = leaves_of(template, container)
    return {path: value for path, value in wanted.items() if path not in paths and not PROGRAM.fullmatch(path)}


@pytest.mark.parametrize(("name", "launcher"), POSSIBLE)
def test_the_printed_command_starts_pods_with_every_field_that_is_not_named(
    name: str, launcher: str, created: Created
) -> None:
    made = created.by(name, launcher)
    for role, replica in job_in(name)["spec"][FIELDS[name]].items():
        wanted = fields_wanted(name, role, replica["template"])
        for pod in pods_of(role, made):
            missing = {path: value for path, value in wanted.items() if leaves_of(pod).get(path) != value}
            assert missing.keys() <= ALIKE.keys(), (role, missing)


def command_of(pod: Manifest) -> list[str]:
    return list(pod["spec"]["containers"][0]["command"])


def test_an_mpi_job_keeps_its_workers_slots_and_command(created: Created) -> None:
    (made,) = created.by("mpi_job", OPERATOR)
    launcher, worker = (made["spec"]["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    assert (made["kind"], made["spec"]["slotsPerWorker"], worker["replicas"]) == ("MPIJob", 8, 2)
    theirs = job_in("mpi_job")["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    in_folder = ["sh", "-c", 'cd /code && exec "$@"', "sh"]
    assert command_of(launcher["template"]) == [*in_folder, *theirs["command"], *theirs["args"]]
    assert "--namespace vision" in printed(translated(text_of("mpi_job")))
    assert "nvidia.com/gpu" not in launcher["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_a_launcher_that_was_a_worker_becomes_one_more(created: Created) -> None:
    runtime, made = created.by("mpi_operator_job", TRAINER)
    assert made["spec"]["trainer"] == {"numNodes": 3, "numProcPerNode": 2}
    (launcher,) = pods_of("Launcher", [runtime])
    theirs = job_in("mpi_operator_job")["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert command_of(launcher) == theirs["command"]


@pytest.mark.parametrize(("name", "workers"), [("xgboost_job", [1, 2]), ("paddle_job", [2]), ("jax_job", [4])])
def test_other_jobs_keep_their_pods_and_command(name: str, workers: list[int], created: Created) -> None:
    (made,) = created.by(name, OPERATOR)
    theirs, ours = (job["spec"][FIELDS[name]] for job in (job_in(name), made))
    assert [each["replicas"] for each in ours.values()] == workers
    container = theirs["Worker"]["template"]["spec"]["containers"][0]
    for role in ours.values():
        assert command_of(role["template"]) == [*container["command"], *container.get("args", [])]
    assert made["kind"] == job_in(name)["kind"]


def test_a_queue_of_kueue_needs_trainer_for_mpi() -> None:
    queued = ("metadata: {name: pi}", "metadata: {name: pi, labels: {kueue.x-k8s.io/queue-name: research}}")
    translation = changed("mpi_operator_job", queued)
    assert translation.request["pods"]["launcher"] == "trainer"
    assert "spec.runPolicy.suspend" not in unmapped(translation)


def test_arguments_that_name_mpirun_are_the_whole_command() -> None:
    translation = changed("mpi_job", ("            command: [mpirun]\n", ""), ("args: [-np", "args: [mpirun, -np"))
    assert translation.command == translated(text_of("mpi_job")).command
    assert not translation.missing


@pytest.mark.parametrize(
    ("replacement", "reason"),
    [
        (("--title=two words", "--wandb-key=abc123"), "may contain a secret"),
        (("            command: [mpirun]\n", ""), "the command is in the image"),
    ],
)
def test_a_command_that_is_secret_or_not_complete_is_left_open(replacement: tuple[str, str], reason: str) -> None:
    translation = changed("mpi_job", replacement)
    lines = "\n".join(report(translation, None))
    assert in_shell(printed(translation))[-2:] == ["sh", "COMMAND"]
    assert "fill in COMMAND" in lines
    assert "abc123" not in lines
    found = {each.path: each.instead for each in translation.unmapped}
    assert reason in found["spec.mpiReplicaSpecs.Launcher.template.spec.containers[mpi].args"]


def test_mpirun_cannot_tell_by_exit_codes_when_to_restart() -> None:
    translation = changed("mpi_job", ("restartPolicy: OnFailure", "restartPolicy: ExitCode"))
    assert "restart_policy" not in translation.request["pods"]
    roles = ("Launcher", "Worker")
    assert {f"spec.mpiReplicaSpecs.{role}.restartPolicy" for role in roles} <= unmapped(translation).keys()


def test_what_a_worker_does_beside_waiting_is_named() -> None:
    translation = changed("mpi_operator_job", ("[/usr/sbin/sshd]", "[sh, -c, /prepare && /usr/sbin/sshd]"))
    found = {each.path: each.instead for each in translation.unmapped}
    assert "initContainers" in found["spec.mpiReplicaSpecs.Worker.template.spec.containers[mpi-worker].command"]


def test_variables_of_the_launcher_are_set_unless_the_workers_have_others() -> None:
    pods = translated(text_of("mpi_job")).request["pods"]
    assert pods["nccl"] == {"NCCL_DEBUG": "INFO"}
    assert pods["env"] == {"NOTE": "from the Launcher", "LEVEL": "2", "MASTER_PORT": "29500"}


def test_a_gang_counts_the_launcher() -> None:
    queued = "runPolicy: {schedulingPolicy: {queue: research, minAvailable: %d}, "
    for pods, named in ((3, False), (2, True)):
        translation = changed("mpi_job", ("runPolicy: {", queued % pods))
        assert ("spec.runPolicy.schedulingPolicy.minAvailable" in unmapped(translation)) == named
