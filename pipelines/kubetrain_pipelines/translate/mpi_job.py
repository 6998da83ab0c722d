"""An MPIJob, of the Training Operator or of MPI Operator 2: its Launcher has the command, its Workers are the pods."""

import re
from typing import Any

from kubetrain_components.jobs.job_kinds import MPI
from kubetrain_components.jobs.mpi_workers import HOME, USER
from kubetrain_pipelines.translate.command_jobs import take_command
from kubetrain_pipelines.translate.commands import command_of
from kubetrain_pipelines.translate.containers import take_variables
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.kinds import take_replicas, take_restart_policy, take_run_policy
from kubetrain_pipelines.translate.pods import main_container

FIELD = "mpiReplicaSpecs"
WAITS = re.compile(r"(.*/)?(sshd|sleep)|")
"""The program of a Worker that only waits for mpirun; an empty one is the operator's."""
DEVICE = re.compile(r"resources\.(?!(requests|limits)\.(cpu|memory)$)|spec\.resourceClaims")
NO_DEVICES = (
    "the Launcher gets no devices, because it only runs mpirun; if it also ran processes, add 1 to pods.workers"
)
ONE_MORE = "the Launcher only runs mpirun: one more Worker runs the processes that it ran (runLauncherAsWorker)"
IMAGE = "the image needs Open MPI 4 and must run as user {user}: see docs/other_frameworks.md#mpi"


def take_mpi_job(draft: Draft, job: Fields) -> None:
    draft.framework = MPI
    spec, roles = job.at("spec"), job.at(f"spec.{FIELD}")
    take_restart_policy(draft, roles, "Never")
    _take_pods(draft, job, roles, spec.take("mainContainer", str, ""))
    draft.set("processes_per_worker", spec.take("slotsPerWorker", int, 1))
    if spec.take("runLauncherAsWorker", bool, False):
        draft.settings["workers"] += 1
        draft.note(ONE_MORE)
    for policy in (spec.at("runPolicy"), spec):  # older jobs have cleanPodPolicy in the spec
        take_run_policy(draft, policy)
    spec.drop_if("mpiImplementation", "OpenMPI")
    spec.drop_if("launcherCreationPolicy", "WaitForWorkersReady")
    spec.drop_if("sshAuthMountPath", f"{HOME}/.ssh")
    draft.note(IMAGE.format(user=draft.settings.get("user", USER)))


def _take_pods(draft: Draft, job: Fields, roles: Fields, container: str) -> None:
    """Take the Workers, and the Launcher's command and variables. Name what else it has otherwise."""
    launcher, worker = (roles.at(f"{role}.template") for role in ("Launcher", "Worker"))
    starter, main = main_container(launcher, ()), main_container(worker, (container,))
    take_command(draft, starter)
    _take_own_variables(draft, starter, main)
    _name_devices(draft, starter)
    launcher.at("spec").content["containers"].pop(0)
    starter.drop("name")
    roles.at("Launcher").drop_if("replicas", 1)
    rest = Fields(roles.content.pop("Launcher"), roles.path_of("Launcher"))
    if WAITS.fullmatch((command_of(main) or [""])[0]):
        main.drop("command", "args")
    in_container, in_pod = _shared_fields(worker, main)
    take_replicas(draft, job, FIELD, ("Worker",), container)
    draft.name_differences(main, in_container, [starter])
    draft.name_differences(worker, in_pod, [launcher])
    draft.unmapped += [Unmapped.of(path, value) for path, value in rest.leaves().items()]


def _take_own_variables(draft: Draft, starter: Fields, main: Fields) -> None:
    """Take the variables that the Workers do not have, some of which mpirun passes on to them."""
    for field in ("env", "envFrom"):
        known = [item.name or item.content for item in main.items(field)]
        shared = [item for item in starter.items(field) if (item.name or item.content) in known]
        own = Fields({field: [item.content for item in starter.items(field) if item not in shared]}, starter.path)
        take_variables(draft, own)
        draft.unmapped += [Unmapped.of(path, value) for path, value in own.leaves().items()]
        starter.content[field] = [item.content for item in shared]


def _name_devices(draft: Draft, starter: Fields) -> None:
    for amounts in (starter.at("resources.requests"), starter.at("resources.limits")):
        for name in sorted(amounts.content.keys() - {"cpu", "memory"}):
            draft.unmapped.append(Unmapped.of(amounts.path_of(name), amounts.content.pop(name), NO_DEVICES))


def _shared_fields(worker: Fields, main: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the Launcher also gets: of the Workers' container, and of the rest of their pod."""
    inside, outside = (Fields(item.content).leaves(with_empty=True) for item in (main, worker))
    of_main = main.path.removeprefix(f"{worker.path}.")
    return (
        {name: value for name, value in inside.items() if not DEVICE.match(name)},
        {name: value for name, value in outside.items() if not DEVICE.match(name) and not name.startswith(of_main)},
    )
