"""Jobs of frameworks for which kubetrain has no trainer: roles, manifests, environment, and what proves a success."""

from dataclasses import replace
from typing import Any

import pytest

from kubetrain_components.jobs.job import ClaimMount, Job
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS, JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import companion_manifest, job_manifest
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.jobs.operator_environment import command_environment, operator_environment
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.jobs.restarts import RestartCounter
from kubetrain_components.jobs.verdict import JobFailed, PodsDisrupted, has_lead_success, is_proven, judge
from kubetrain_trainer.errors import InvalidSetting
from support.manifests import IDENTITY, PLAIN, command, pytorch, tensorflow

HERE = [(framework, launcher) for framework in COMMAND_FRAMEWORKS for launcher in LAUNCHERS]
OPERATOR, TRAINER, ALONE = LAUNCHERS


def nothing(pod: str) -> list[str]:
    return []


def container(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found


def templates(job: Job) -> dict[str, Any]:
    """Return the pod templates by role, wherever they are."""
    manifest = job_manifest(job, instance="0a")
    if job.kind is JobKind.BATCH_JOB:
        return {"Worker": manifest["spec"]["template"]}
    if job.kind is not JobKind.TRAIN_JOB:
        return {role: each["template"] for role, each in manifest["spec"][job.kind.traits.replica_specs].items()}
    runtime = companion_manifest(job, None, "0a")
    assert runtime is not None
    parts = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    found = [each["template"]["spec"]["template"] for each in parts]
    return {each["metadata"]["labels"]["kubetrain/role"].capitalize(): each for each in found}


@pytest.mark.parametrize(
    ("framework", "launcher", "roles"),
    [
        ("mpi", OPERATOR, {"Launcher": 1, "Worker": 3}),
        ("mpi", TRAINER, {"Launcher": 1, "Worker": 3}),
        ("xgboost", OPERATOR, {"Master": 1, "Worker": 2}),
        ("paddle", OPERATOR, {"Worker": 3}),
        ("jax", OPERATOR, {"Worker": 3}),
        *((framework, launcher, {"Worker": 3}) for framework in ("xgboost", "jax") for launcher in (TRAINER, ALONE)),
    ],
)
def test_the_pods_have_the_roles_that_the_launcher_knows(
    framework: str, launcher: Launcher, roles: dict[str, int]
) -> None:
    job = command(framework, launcher, workers=3)
    assert job.roles == roles
    assert set(templates(job)) == set(roles)


@pytest.mark.parametrize(("framework", "launcher"), [pair for pair in HERE if pair != ("mpi", ALONE)])
def test_every_pod_runs_the_command_but_the_workers_of_mpi(framework: str, launcher: Launcher) -> None:
    for role, template in templates(command(framework, launcher)).items():
        expected = ["sh", "-c"] if (framework, role) == ("mpi", "Worker") else ["python", "train.py"]
        assert container(template)["command"][:2] == expected


def test_mpi_needs_an_operator() -> None:
    with pytest.raises(InvalidSetting, match=r"mpirun access .*use pods.launcher=training-operator or trainer"):
        job_manifest(command("mpi", ALONE))


@pytest.mark.parametrize(
    ("launcher", "devices"), [(OPERATOR, {"gpus": 2, "rdma": {"rdma/hca": 1}}), (TRAINER, {"gpus": 2})]
)
def test_the_launcher_of_mpi_takes_no_device(launcher: Launcher, devices: dict[str, Any]) -> None:
    claims: Any = [{"name": "card", "resourceClaimName": "card"}]
    made = templates(
        command("mpi", launcher, placement=replace(PLAIN, **devices, pod=pod_patch({"resourceClaims": claims})))
    )
    of_launcher, of_worker = made["Launcher"]["spec"], made["Worker"]["spec"]
    assert of_launcher["containers"][0]["resources"]["limits"].keys() == {"memory"}
    assert "resourceClaims" not in of_launcher
    assert of_launcher["containers"][0]["securityContext"].get("runAsUser") is None  # mpirun refuses to run as root
    assert of_worker["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert of_worker["resourceClaims"] == claims


@pytest.mark.parametrize("launcher", [OPERATOR, TRAINER])
def test_the_pods_of_mpi_run_as_mpiuser_unless_another_is_set(launcher: Launcher) -> None:
    for placement, user in ((PLAIN, 1000), (replace(PLAIN, user=4000), 4000)):
        made = templates(command("mpi", launcher, placement=placement)).values()
        assert {each["spec"]["securityContext"]["runAsUser"] for each in made} == {user}


@pytest.mark.parametrize(
    ("launcher", "settings", "reason"),
    [
        (OPERATOR, {"restart_policy": "ExitCode"}, "use OnFailure or Never"),
        (TRAINER, {"restart_policy": "ExitCode"}, "use OnFailure or Never"),
        (OPERATOR, {"scheduler": "kueue", "queue": "q"}, "use pods.launcher=trainer, or remove pods.scheduler"),
        (TRAINER, {"host_network": True}, "remove pods.host_network"),
        (TRAINER, {"rdma": {"rdma/hca": 1}}, "request the devices in pod"),
    ],
)
def test_what_mpi_cannot_do_is_refused(launcher: Launcher, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        job_manifest(command("mpi", launcher, placement=replace(PLAIN, **settings)))


def test_only_the_launcher_of_an_mpi_job_may_reach_the_api() -> None:
    made = templates(command("mpi", OPERATOR))
    tokens = {role: each["spec"]["automountServiceAccountToken"] for role, each in made.items()}
    assert tokens == {"Launcher": True, "Worker": False}
    accounts = {role: each["spec"].get("serviceAccountName") for role, each in made.items()}
    assert accounts == {"Launcher": None, "Worker": None}, "the operator creates an account with pods/exec for mpirun"
    spec = job_manifest(command("mpi", OPERATOR, processes_per_worker=4))["spec"]
    assert (spec["slotsPerWorker"], spec["mainContainer"], spec["runPolicy"]["cleanPodPolicy"]) == (4, "mpi", "Running")


@pytest.mark.parametrize("launcher", [OPERATOR, TRAINER])
def test_every_pod_of_an_mpi_job_has_the_account_that_is_set(launcher: Launcher) -> None:
    made = templates(command("mpi", launcher, placement=replace(PLAIN, pod=pod_patch({"serviceAccountName": "team"}))))
    assert {each["spec"].get("serviceAccountName") for each in made.values()} == {"team"}
    if launcher is OPERATOR:
        assert made["Launcher"]["spec"]["automountServiceAccountToken"], "mpirun needs it, also if the account has none"


def test_the_runtime_of_mpi_has_the_names_that_trainer_knows() -> None:
    runtime = companion_manifest(command("mpi", TRAINER, workers=3, processes_per_worker=2), None, "0a")
    assert runtime is not None
    spec = runtime["spec"]
    assert spec["mlPolicy"]["numNodes"] == 3
    assert spec["mlPolicy"]["mpi"]["numProcPerNode"] == 2
    node, launcher = spec["template"]["spec"]["replicatedJobs"]
    assert (node["name"], launcher["name"]) == ("node", "launcher")
    assert launcher["dependsOn"] == [{"name": "node", "status": "Ready"}]
    with_gpus = replace(PLAIN, gpus=8)
    by_processes = {
        wanted: job_manifest(command("mpi", TRAINER, processes_per_worker=wanted, placement=with_gpus), instance="0a")[
            "spec"
        ]["trainer"]["numProcPerNode"]
        for wanted in (0, 1)
    }
    assert by_processes == {0: 8, 1: 1}  # Trainer would take 1 in the runtime as the number of GPUs
    assert spec["template"]["spec"]["successPolicy"]["targetReplicatedJobs"] == ["launcher"]


@pytest.mark.parametrize("framework", ["xgboost", "paddle", "jax"])
def test_the_variables_have_the_same_names_with_every_launcher(framework: str) -> None:
    job = command(framework, OPERATOR)
    set_by_operator = operator_environment(job, job.lead_role, 0, lambda role, index: (f"{role}-{index}", 1))
    for launcher in (TRAINER, ALONE):
        (template,) = templates(command(framework, launcher)).values()
        names = {each["name"] for each in container(template)["env"]}
        assert set_by_operator.keys() <= names


def test_the_ranks_of_an_xgboost_job_begin_with_the_master() -> None:
    job = command("xgboost", OPERATOR, workers=3)
    workers = [operator_environment(job, "Worker", index, lambda role, at: (f"{role}-{at}", 9)) for index in range(2)]
    master = operator_environment(job, "Master", 0, lambda role, at: (f"{role}-{at}", 9))
    assert [each["RANK"] for each in (master, *workers)] == ["0", "1", "2"]
    assert master["MASTER_ADDR"] == "Master-0"
    assert master["WORKER_ADDRS"] == "Worker-0,Worker-1"


@pytest.mark.parametrize(
    ("framework", "variables"),
    [
        (
            "paddle",
            {"PADDLE_MASTER": "pod-0:9", "PADDLE_NNODES": "2", "PADDLE_JOB_ID": command("paddle").identity.name},
        ),
        (
            "jax",
            {"COORDINATOR_ADDRESS": "pod-0", "COORDINATOR_PORT": "9", "NUM_PROCESSES": "2", "PROCESS_ID": "1"},
        ),
    ],
)
def test_a_pod_learns_its_rank_and_where_the_first_one_is(framework: str, variables: dict[str, str]) -> None:
    assert command_environment(command(framework), "1", lambda rank: f"pod-{rank}", 9) == variables


def test_the_command_is_told_where_its_data_and_output_are() -> None:
    job = command("jax", OPERATOR)
    (replica,) = job.replicas
    folders = {"KUBETRAIN_DATA": "/data", "KUBETRAIN_OUTPUT": f"/output/{IDENTITY.run_id}"}
    assert replica.env.items() >= {**folders, "KUBETRAIN_RUN_ID": IDENTITY.run_id}.items()
    (without_data,) = command("jax", OPERATOR, mounts=(ClaimMount(claim="out", path="/output"),)).replicas
    assert "KUBETRAIN_DATA" not in without_data.env


def test_a_variable_of_the_users_that_the_launcher_overrides_is_refused() -> None:
    for launcher in LAUNCHERS:
        with pytest.raises(InvalidSetting, match=r"NUM_PROCESSES is set by the (operator|launcher)"):
            job_manifest(command("jax", launcher, placement=replace(PLAIN, env={"NUM_PROCESSES": "3"})))


def state_of(job: Job, phase: Phase, pods: dict[str, Phase]) -> JobState:
    handle = JobHandle(kind=job.kind, name=job.identity.name, uid="1")
    roles = (name.rpartition("-") for name in pods)
    made = [
        PodState(role=role, index=int(index), phase=each, exit_code=int(each is Phase.FAILED))
        for (role, _, index), each in zip(roles, pods.values(), strict=True)
    ]
    return JobState(handle=handle, phase=phase, pods=tuple(made))


def test_the_launcher_alone_proves_the_success_of_mpi() -> None:
    job = command("mpi", OPERATOR)
    ended = {"Launcher-0": Phase.SUCCEEDED, "Worker-0": Phase.FAILED, "Worker-1": Phase.RUNNING}
    state = state_of(job, Phase.SUCCEEDED, ended)
    assert has_lead_success(job, state)
    judge(job, state, nothing)
    unfinished = state_of(job, Phase.RUNNING, ended)
    assert not is_proven(job, unfinished)


@pytest.mark.parametrize("framework", COMMAND_FRAMEWORKS)
def test_a_success_without_pods_is_not_believed(framework: str) -> None:
    """No checkpoint proves it: the command may never have run."""
    with pytest.raises(PodsDisrupted, match="its pod was deleted"):
        judge(command(framework), state_of(command(framework), Phase.SUCCEEDED, {}), nothing)
    assert is_proven(pytorch(), state_of(pytorch(), Phase.SUCCEEDED, {}))  # the next step verifies its checkpoint


@pytest.mark.parametrize("framework", ["xgboost", "jax", "paddle"])
def test_every_pod_must_succeed(framework: str) -> None:
    job = command(framework, ALONE)
    judge(job, state_of(job, Phase.SUCCEEDED, {"Worker-0": Phase.SUCCEEDED, "Worker-1": Phase.SUCCEEDED}), nothing)
    with pytest.raises(JobFailed, match="worker-1 exited with code 1"):
        judge(job, state_of(job, Phase.SUCCEEDED, {"Worker-0": Phase.SUCCEEDED, "Worker-1": Phase.FAILED}), nothing)


@pytest.mark.parametrize("launcher", [TRAINER, ALONE])
def test_a_success_that_kubernetes_counted_needs_no_pods(launcher: Launcher) -> None:
    job = command("jax", launcher)
    for pods in ({}, {"Worker-1": Phase.SUCCEEDED}):
        assert is_proven(job, state_of(job, Phase.SUCCEEDED, pods))
        assert not is_proven(job, state_of(job, Phase.RUNNING, pods))
    assert not is_proven(job, state_of(job, Phase.SUCCEEDED, {"Worker-1": Phase.FAILED}))


def test_an_xgboost_job_is_not_ending_while_its_workers_work() -> None:
    job = command("xgboost")
    working = {"Master-0": Phase.SUCCEEDED, "Worker-0": Phase.RUNNING}
    assert not state_of(job, Phase.SUCCEEDED, working).is_ending
    assert state_of(job, Phase.SUCCEEDED, {**working, "Worker-0": Phase.SUCCEEDED}).is_ending
    assert state_of(tensorflow(), Phase.SUCCEEDED, {"Chief-0": Phase.SUCCEEDED, "Worker-0": Phase.RUNNING}).is_ending


def test_an_elastic_job_is_not_ending_while_rank_0_works() -> None:
    """It may write the model alone; the operator calls the job succeeded as soon as any Worker has."""
    handle = JobHandle(kind=JobKind.PYTORCH_JOB, name="j", uid="u")

    def state(first: PodState, second: Phase, *, elastic: bool = True) -> JobState:
        pods = (first, PodState(role="Worker", index=1, phase=second))
        return JobState(handle=handle, phase=Phase.SUCCEEDED, pods=pods, needed=2, succeeds_with_any=elastic)

    first = PodState(role="Worker", index=0, phase=Phase.RUNNING)
    assert not state(first, Phase.SUCCEEDED).is_ending
    assert state(first, Phase.SUCCEEDED, elastic=False).is_ending, "such as the Workers of mpirun, which wait for it"
    assert state(replace(first, is_terminating=True), Phase.SUCCEEDED).is_ending
    assert state(replace(first, phase=Phase.SUCCEEDED), Phase.RUNNING).is_ending


def test_mpirun_has_succeeded_though_a_container_beside_it_still_runs() -> None:
    job = command("mpi")
    state = state_of(job, Phase.RUNNING, {"Launcher-0": Phase.SUCCEEDED, "Worker-0": Phase.RUNNING})
    assert not state.is_ending
    launcher, worker = state.pods
    state = replace(state, pods=(replace(launcher, lingering=("upload",)), worker))
    assert state.is_ending
    judge(job, state, nothing)


def test_workers_that_restart_together_with_mpirun_are_one_restart() -> None:
    counter = RestartCounter(lambda: 0.0)
    started = state_of(command("mpi"), Phase.RUNNING, {"Launcher-0": Phase.RUNNING, "Worker-0": Phase.RUNNING})
    assert counter.count(started, "") == 0
    assert counter.count(replace(started, pods=tuple(replace(pod, restarts=1) for pod in started.pods)), "") == 1
