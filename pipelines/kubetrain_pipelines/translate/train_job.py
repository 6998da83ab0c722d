"""A TrainJob of Kubeflow Trainer: its runtime has the pods, of which it changes some fields."""

from kubetrain_components.jobs.kubernetes.manifests.train_job import STEP_LABEL
from kubetrain_pipelines.translate.commands import command_of
from kubetrain_pipelines.translate.containers import take_container
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.entry import take_entry
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.kinds import take_elastic, take_gang, take_processes, take_run_policy
from kubetrain_pipelines.translate.pods import main_container, take_pod
from kubetrain_pipelines.translate.torchrun import torchrun_in
from kubetrain_trainer.errors import InvalidSetting

FRAMEWORK_LABEL = "trainer.kubeflow.org/framework"
GANGS = {"volcano": "volcano", "coscheduling": "scheduler-plugins"}
"""Schedulers by what a runtime calls them."""
NEEDS_OPERATOR = (
    "pods.scheduler={scheduler} needs pods.launcher=training-operator: with Trainer alone, set pods.scheduler to kueue"
)
FRAMEWORKS = {"torch": "pytorch", "pytorch": "pytorch", "tensorflow": "tensorflow"}


def take_train_job(draft: Draft, job: Fields, runtime: Fields) -> None:
    """
    Args:
        runtime: The runtime that the job refers to, empty if it is not in the files.
    """
    policy, trainer = runtime.at("spec.mlPolicy"), job.at("spec.trainer")
    has_policy = "torch" in policy.content
    nodes = _nodes(draft, runtime)
    template = nodes.at("template.spec.template")
    main = main_container(template, ("node",)) if runtime.content else Fields({})
    _drop_overridden(main, trainer)
    workers = [owner.take("numNodes", int) for owner in (trainer, policy)]
    draft.set("workers", next((number for number in workers if number is not None), 1))
    command = command_of(main, trainer)
    gang = runtime.at("spec.podGroupPolicy")
    for layer, container in [(template, main), *_patches(job, nodes, main)]:
        take_pod(draft, layer, container, has_gang=bool(gang.content))
    _take_gang(draft, gang)
    take_container(draft, trainer, "resourcesPerNode")
    torchrun = torchrun_in(command, is_used=has_policy and not command)  # an image without a command
    take_elastic(draft, policy.at("torch.elasticPolicy"), torchrun, "Nodes")
    take_run_policy(draft, job.at("spec"))
    take_processes(draft, torchrun, [(trainer, "numProcPerNode"), (policy.at("torch"), "numProcPerNode")], "auto")
    take_entry(draft, torchrun, main, trainer)
    _take_restarts(draft, runtime, template)
    _take_dataset(draft, job.at("spec.initializer.dataset"))


def framework_of(reference: Fields, runtime: Fields) -> str:
    """Return the framework of a TrainJob.

    Raises:
        InvalidSetting: if kubetrain does not train with it, or it is not known.
    """
    name, policy = reference.get("name", str, ""), runtime.at("spec.mlPolicy").content
    label = str(runtime.at("metadata.labels").content.get(FRAMEWORK_LABEL, ""))
    others = sorted({label, *policy} - {"", "numNodes", *FRAMEWORKS})
    if others:
        raise InvalidSetting(
            f"runtime {name} runs {others[0]}: only a TrainJob of PyTorch or TensorFlow can be translated"
        )
    words = [label, *(["torch"] if "torch" in policy else []), *(word for word in FRAMEWORKS if word in name)]
    found = next((FRAMEWORKS[word] for word in words if word in FRAMEWORKS), "")
    if not found:
        raise InvalidSetting(
            f"the framework of runtime {name} is not known: add the runtime to the files, with the label "
            f"{FRAMEWORK_LABEL}: torch or tensorflow"
        )
    return found


def _nodes(draft: Draft, runtime: Fields) -> Fields:
    """Return the replicated job that trains, and name the others."""
    jobs = runtime.at("spec.template.spec").items("replicatedJobs")
    by_name = next((item for item in jobs if item.name == "node"), Fields({}))
    nodes = next((item for item in jobs if _is_trainer(item)), by_name)
    if runtime.content and nodes not in jobs:
        raise InvalidSetting(
            f"{runtime.path}.spec.template.spec has no replicated job named node: correct the manifest"
        )
    for job in jobs:
        if job is not nodes:
            draft.unmapped.append(Unmapped.of(job.path, "pods of its own"))
            job.content.clear()
    nodes.drop("groupName", "template.spec.completions", "template.spec.parallelism", "template.spec.completionMode")
    nodes.drop_if("replicas", 1)
    for name in STEP_LABEL:
        nodes.at("template.metadata.labels").content.pop(name, None)
    return nodes


def _is_trainer(nodes: Fields) -> bool:
    """Return True for the label of the pods that train. Initializers may have it with their own names."""
    return STEP_LABEL.items() <= nodes.at("template.metadata.labels").content.items()


def _drop_overridden(main: Fields, trainer: Fields) -> None:
    """Drop fields of the runtime's container that the TrainJob replaces."""
    for name, own in (("image", "image"), ("command", "command"), ("args", "args"), ("resources", "resourcesPerNode")):
        if own in trainer.content:
            main.drop(name)


def _patches(job: Fields, nodes: Fields, main: Fields) -> list[tuple[Fields, Fields]]:
    """Return the pod templates that a TrainJob lays over its runtime's, with their main containers."""
    name, layers = nodes.name or "node", []
    for patch in job.at("spec").items("runtimePatches"):
        patch.drop("manager", "time")
        patched = patch.at("trainingRuntimeSpec.template.spec").items("replicatedJobs")
        layers += [item.at("template.spec.template") for item in patched if item.content.get("name") == name]
    for override in job.at("spec").items("podTemplateOverrides"):  # until Trainer 2.1
        if {"name": name} in override.get("targetJobs", list, []):
            override.drop("targetJobs")
            layers.append(override)
    return [(layer, _patched_container(layer, main)) for layer in layers]


def _patched_container(layer: Fields, main: Fields) -> Fields:
    names = (main.content.get("name"), "node")
    return next(
        (item for item in layer.at("spec").items("containers") if item.content.get("name") in names), Fields({})
    )


def _take_gang(draft: Draft, policy: Fields) -> None:
    """Take the scheduler that a runtime names, perhaps without any setting."""
    for name, scheduler in GANGS.items():
        if name in policy.content and "scheduler" not in draft.settings:
            draft.set("scheduler", scheduler)
        if draft.settings.get("scheduler") == scheduler:
            draft.note(NEEDS_OPERATOR.format(scheduler=scheduler))
            take_gang(draft, policy.at(name))


def _take_restarts(draft: Draft, runtime: Fields, template: Fields) -> None:
    if template.get("spec.restartPolicy", str) in ("OnFailure", "Never"):
        draft.set("restart_policy", template.take("spec.restartPolicy", str))
    if "max_restarts" not in draft.settings:
        draft.set("max_restarts", runtime.at("spec.template.spec.failurePolicy").take("maxRestarts", int))


def _take_dataset(draft: Draft, dataset: Fields) -> None:
    if dataset.get("storageUri", str, "").startswith("s3://"):
        draft.set("dataset_uri", dataset.take("storageUri", str))
