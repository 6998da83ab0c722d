"""The kinds of jobs that can be translated, each into the settings of a run."""

from kubetrain_components.jobs.annotations import KUEUE_LABEL
from kubetrain_components.jobs.job_kinds import MPI
from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.translate.commands import command_of
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.entry import take_entry
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.pods import main_container, take_pod
from kubetrain_pipelines.translate.torchrun import Torchrun, script_in, torchrun_in
from kubetrain_trainer.errors import InvalidSetting

GPU_SETTINGS = ("gpus", "gpu_resource", "pod")
FEWER = "the gang has all pods, or pods.min_workers of them"
OPERATORS = ("kubeflow.org/training-operator", "kubeflow.org/mpi-operator", "trainer.kubeflow.org/trainjob-controller")


def take_pytorch_job(draft: Draft, job: Fields) -> None:
    policy = job.at("spec.elasticPolicy")
    main = take_replicas(draft, job, "pytorchReplicaSpecs", ("Master", "Worker"), "pytorch")
    torchrun = torchrun_in(command_of(main))
    take_elastic(draft, policy, torchrun)
    _take_metrics(draft, policy)
    policy.drop_if("rdzvBackend", "c10d")
    policy.drop_if("standalone", False)
    take_run_policy(draft, job.at("spec.runPolicy"))
    take_restart_policy(draft, job.at("spec.pytorchReplicaSpecs"), "OnFailure")
    take_processes(draft, torchrun, [(job.at("spec"), "nprocPerNode"), (policy, "nProcPerNode")], default="auto")
    take_entry(draft, torchrun, main)


def take_tf_job(draft: Draft, job: Fields) -> None:
    main = take_replicas(draft, job, "tfReplicaSpecs", ("Chief", "Master", "Worker"), "tensorflow")
    take_run_policy(draft, job.at("spec.runPolicy"))
    take_restart_policy(draft, job.at("spec.tfReplicaSpecs"), "Never")
    job.drop_if("spec.successPolicy", "AllWorkers")
    job.drop_if("spec.enableDynamicWorker", False)
    take_entry(draft, Torchrun(), main)


def take_elastic_job(draft: Draft, job: Fields) -> None:
    spec = job.at("spec")
    main = take_replicas(draft, job, "replicaSpecs", ("Worker",), "elasticjob-worker", has_gang=False)
    torchrun = torchrun_in(command_of(main), is_used=True)
    take_elastic(draft, spec, torchrun)
    for policy in (job.at("spec.RunPolicy"), spec):  # its controller reads the first
        take_run_policy(draft, policy)
    take_restart_policy(draft, job.at("spec.replicaSpecs"), "OnFailure")
    take_processes(draft, torchrun, [], default="1")
    take_entry(draft, torchrun, main, has_launcher=True)


def take_elastic(draft: Draft, policy: Fields, torchrun: Torchrun, pods: str = "Replicas") -> None:
    """
    Args:
        pods: What the policy calls pods.
    """
    # The operator passes the policy in variables, which torchrun's options override.
    workers = draft.settings["workers"]
    most = torchrun.max_nodes or policy.get(f"max{pods}", int, 0)
    grows = most > workers and draft.settings.get("scheduler") != "kueue"
    if fewest := torchrun.min_nodes or policy.get(f"min{pods}", int, 0) or (workers if grows else 0):
        if fewest > workers:
            raise InvalidSetting(f"the job has {workers} pods, but min{pods} is {fewest}: correct one of them")
        draft.set("min_workers", fewest)
        policy.drop_if(f"min{pods}", fewest)
    if grows:
        draft.set("max_workers", most)
    if grows or most <= workers:
        policy.drop_if(f"max{pods}", most)
    if 0 < most < workers:
        draft.note(
            f"the job has {workers} pods, but at most {most} were allowed: set pods.workers, or pods.max_workers to "
            f"grow"
        )
    restarts = policy.get("maxRestarts", int) if torchrun.max_restarts is None else torchrun.max_restarts
    draft.set("max_restarts", restarts)
    policy.drop_if("maxRestarts", restarts)


def take_run_policy(draft: Draft, policy: Fields) -> None:
    policy.drop_if("cleanPodPolicy", "Running")
    for field, setting in (("ttlSecondsAfterFinished", "ttl_seconds"), ("activeDeadlineSeconds", "deadline_seconds")):
        if policy.get(field, int, 0) > 0:
            draft.set(setting, policy.take(field, int))
    if "max_restarts" not in draft.settings:
        draft.set("max_restarts", policy.take("backoffLimit", int))
    policy.drop_if("managedBy", *OPERATORS)
    policy.drop_if("suspend", False, draft.settings.get("scheduler") == "kueue")
    take_gang(draft, policy.at("schedulingPolicy"))


def take_queue(draft: Draft, job: Fields) -> None:
    if queue := job.at("metadata.labels").content.pop(KUEUE_LABEL, ""):
        draft.set("scheduler", "kueue")
        draft.set("queue", queue)


def take_restart_policy(draft: Draft, roles: Fields, default: str) -> None:
    """Take the restart policy of the first role, unless the job would not run as intended with it.

    Args:
        default: What the operator takes for a role without a policy.
    """
    others = ["Never"] if draft.framework == MPI else ["Never", "ExitCode"]
    allowed = ["OnFailure", *([] if draft.settings.get("min_workers") else others)]
    for role in (roles.at(name) for name in roles.content):
        policy = role.get("restartPolicy", str, default)
        if policy in allowed and draft.settings.setdefault("restart_policy", policy) == policy:
            role.drop("restartPolicy")
            role.drop_if("template.spec.restartPolicy", policy)


def take_processes(draft: Draft, torchrun: Torchrun, fields: list[tuple[Fields, str]], default: str) -> None:
    """Take the number of processes in a pod: the option of torchrun, or else the first field."""
    given = [str(owner.get(name, (str, int))) for owner, name in fields if name in owner.content]
    wanted = next(iter([*([torchrun.processes] if torchrun.processes else []), *given]), "")
    gpus = _placement(draft).gpu_count
    if not wanted:
        wanted = default if torchrun.is_used else "1"
    is_by_gpus = wanted in ("auto", "gpu") and gpus > 0
    number = str(gpus) if is_by_gpus else wanted
    if number.isdigit() and int(number):
        if not is_by_gpus:
            draft.set("processes_per_worker", int(number))
        if given and int(number) > 1 and not torchrun.is_used:
            draft.note(
                f"torchrun will start {number} processes in a pod, but the job's command does not use torchrun: set "
                "pods.processes to 1 if the script starts its processes itself"
            )
        for owner, name in fields:
            owner.drop_if(name, wanted, int(number), number)
    else:
        draft.note(f"a pod has '{wanted}' processes, which depends on its node: set pods.processes")
    if gpus > draft.settings.get("processes_per_worker", gpus):
        draft.note(f"a pod has {gpus} GPUs, but fewer processes: remove pods.processes for one on each GPU")


def _placement(draft: Draft) -> Placement:
    """Return what says how many GPUs a pod has."""
    given = {name: draft.settings[name] for name in GPU_SETTINGS if name in draft.settings}
    return Placement.from_dict({"cpu": "", "memory": "", **given})


def take_replicas(
    draft: Draft, job: Fields, field: str, roles: tuple[str, ...], container: str, *, has_gang: bool = True
) -> Fields:
    """Take the pods of all roles that train, and return what is left of their container, such as its command."""
    specs = job.at(f"spec.{field}")
    _capitalize(specs, roles)
    counts = {role: specs.at(role).take("replicas", int, 1) for role in roles if role in specs.content}
    present = [role for role, count in counts.items() if count]
    if not present:
        raise InvalidSetting(f"{specs.path} has no pods in the roles {', '.join(roles)}: correct the manifest")
    for role in specs.content.keys() - {*present}:
        _drop_role(draft, specs, role, counts.get(role))
    draft.set("workers", sum(counts.values()))
    main_role = max(present, key=lambda role: (counts[role], role))
    templates = {role: specs.at(role).at("template") for role in present}
    template = templates.pop(main_role)
    mains = [main_container(item, (container,)) for item in (template, *templates.values())]
    draft.has_one_program = len({_program_of(main) for main in mains}) == 1
    before = Fields(template.content).leaves(with_empty=True)
    take_pod(draft, template, mains[0], has_gang=has_gang)
    draft.name_differences(template, before, list(templates.values()))
    return mains[0]


def _program_of(container: Fields) -> tuple[str, ...]:
    """Return the program and its folder, without options of torchrun, by which nodes find each other."""
    words = command_of(container)
    return container.get("workingDir", str, ""), *(script_in(words) or words)


def _capitalize(specs: Fields, roles: tuple[str, ...]) -> None:
    """Write roles as the operator does, which accepts them in any case."""
    names = {role.lower(): role for role in (*roles, "PS", "Evaluator")}
    for given in list(specs.content):
        if (role := names.get(given.lower(), given)) != given and role in specs.content:
            raise InvalidSetting(f"{specs.path} has {given} and {role}, which are one role: correct the manifest")
        specs.content[role] = specs.content.pop(given)


def _drop_role(draft: Draft, specs: Fields, role: str, count: int | None) -> None:
    """Drop a role that does not train, and name it if it has pods."""
    count = specs.at(role).get("replicas", int, 1) if count is None else count
    if count:
        draft.unmapped.append(Unmapped.of(f"{specs.path_of(role)}.replicas", count))
    specs.drop(role)


def _take_metrics(draft: Draft, policy: Fields) -> None:
    metrics = [item.content for item in policy.items("metrics")]
    policy.drop("metrics")
    if draft.settings.get("min_workers") and draft.settings.get("scheduler") != "kueue":
        draft.set("scale_metrics", metrics)
    elif metrics:
        draft.unmapped.append(Unmapped.of(policy.path_of("metrics"), metrics))


def take_gang(draft: Draft, policy: Fields) -> None:
    """Take the scheduling policy of a gang, or name what no gang of kubetrain's can have."""
    settings = draft.settings
    can_queue = settings.get("scheduler") == "volcano" or not (
        "scheduler" in settings or "schedulerName" in draft.pod_spec
    )
    if can_queue and policy.get("queue", str):
        draft.set("scheduler", "volcano")  # other gang schedulers have no queues
        draft.set("queue", policy.take("queue", str))
    if settings.get("scheduler") == "scheduler-plugins" and policy.get("scheduleTimeoutSeconds", int, 0) > 0:
        draft.set("start_seconds", policy.take("scheduleTimeoutSeconds", int))
    if "scheduler" in settings:
        policy.drop_if("minAvailable", settings.get("min_workers") or draft.pods)
        if fewest := policy.take("minAvailable", int):
            draft.unmapped.append(Unmapped.of(policy.path_of("minAvailable"), fewest, FEWER))
    if settings.get("scheduler") in ("volcano", "scheduler-plugins"):
        if "priorityClassName" not in draft.pod_spec:
            draft.patch({"priorityClassName": policy.get("priorityClass", str)})
        policy.drop_if("priorityClass", draft.pod_spec.get("priorityClassName"))
