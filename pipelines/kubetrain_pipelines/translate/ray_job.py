"""A RayJob of KubeRay: its entrypoint becomes the script, and the pods of its worker groups the workers."""

import shlex
from typing import Any

import yaml

from kubetrain_components.jobs.launchers import Launcher
from kubetrain_pipelines.translate.containers import take_variables
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.entry import take_entry
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.kinds import take_run_policy
from kubetrain_pipelines.translate.pods import main_container, take_pod
from kubetrain_pipelines.translate.torchrun import Torchrun
from kubetrain_trainer.errors import InvalidSetting

SAME_NUMBER = "the number of workers stays as it is: set pods.workers"
NO_RETRIES = "a run that is started again under its ID continues from its last checkpoint"
RESULTS = (
    "Ray Train keeps its results on shared storage: set storage_path in RunConfig to a folder of $KUBETRAIN_OUTPUT"
)


def take_ray_job(draft: Draft, job: Fields) -> None:
    spec = job.at("spec")
    draft.set("launcher", Launcher.RAY.value)
    _take_pods(draft, spec.at("rayClusterSpec"))
    _take_runtime_environment(draft, spec)
    if retries := spec.take("backoffLimit", int, 0):
        draft.unmapped.append(Unmapped.of(spec.path_of("backoffLimit"), retries, NO_RETRIES))
    take_run_policy(draft, spec)
    spec.drop_if("shutdownAfterJobFinishes", True)
    spec.drop_if("submissionMode", "K8sJobMode")
    take_entry(draft, Torchrun(), _entrypoint(spec))
    draft.note(RESULTS)


def _entrypoint(spec: Fields) -> Fields:
    text = spec.take("entrypoint", str, "")
    try:
        return Fields({"command": shlex.split(text)}, spec.path_of("entrypoint"))
    except ValueError as error:
        raise InvalidSetting(f"spec.entrypoint is not a command ({error}): correct the manifest") from None


def _take_pods(draft: Draft, cluster: Fields) -> None:
    """Take the first group of workers. Name what the others and the head have otherwise."""
    cluster.drop("rayVersion")
    cluster.drop_if("enableInTreeAutoscaling", False)
    groups, head = cluster.items("workerGroupSpecs"), cluster.at("headGroupSpec")
    if not groups:
        raise InvalidSetting("spec.rayClusterSpec has no workerGroupSpecs: correct the manifest")
    draft.set("workers", sum(_take_number(draft, group) for group in groups))
    head.drop_if("rayStartParams.dashboard-host", "0.0.0.0")  # noqa: S104 - KubeRay's default
    template, *others = [group.at("template") for group in (*groups, head)]
    for each in (template, *others):
        container = main_container(each, ())
        container.drop("ports")
        container.content["name"] = "ray"  # one name in all roles: its difference means nothing
    before = Fields(template.content).leaves(with_empty=True)
    take_pod(draft, template, main_container(template, ()))
    draft.name_differences(template, before, others)


def _take_number(draft: Draft, group: Fields) -> int:
    number = group.take("replicas", int, 1)
    group.drop("groupName")
    for name in ("minReplicas", "maxReplicas"):
        if (limit := group.take(name, int, number)) != number:
            draft.unmapped.append(Unmapped.of(group.path_of(name), limit, SAME_NUMBER))
    return int(number * group.take("numOfHosts", int, 1))


def _take_runtime_environment(draft: Draft, spec: Fields) -> None:
    """Take the variables, and leave the rest as fields, so that each is named."""
    try:
        given: Any = yaml.safe_load(spec.get("runtimeEnvYAML", str, "")) or {}
    except yaml.YAMLError:
        raise InvalidSetting("spec.runtimeEnvYAML is not valid YAML: correct the manifest") from None
    spec.content["runtimeEnvYAML"] = given
    environment = spec.at("runtimeEnvYAML")
    values = environment.take("env_vars", dict, {})
    variables = Fields(
        {"env": [{"name": name, "value": str(value)} for name, value in values.items()]}, environment.path
    )
    take_variables(draft, variables)
    environment.content.update(variables.content)
