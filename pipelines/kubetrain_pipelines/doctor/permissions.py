"""Compare the permissions of a run's account with the roles in deploy/. Pure functions."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kubetrain_components.jobs.job_kinds import TRAINING_KINDS
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.deploy_files import apply_command, role_and_binding, role_of
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, unknown, warning

GROUP = "authorization.k8s.io/v1"
NEEDED = "launch.yaml"
OPTIONAL = {
    "events.yaml": "errors name only the status of jobs and pods as the cause",
    "storage_classes.yaml": "storage.exposure=auto shares a ReadWriteMany staging PVC even if it could be cloned",
}
"""The consequences of a missing role, by file."""
OPTIONAL_GROUPS = ("argoproj.io", "kueue.x-k8s.io")
"""API groups that a cluster may lack; a run calls them only if they exist."""
OF_LAUNCHERS = {
    **{kind.traits.plural: Launcher.TRAINING_OPERATOR for kind in TRAINING_KINDS},
    "trainjobs": Launcher.TRAINER,
    "trainingruntimes": Launcher.TRAINER,
    "services": Launcher.JOB,
    "rayjobs": Launcher.RAY,
}
"""The launchers that alone need a resource."""


@dataclass(frozen=True)
class Call:
    group: str
    resource: str
    verb: str
    is_namespaced: bool = True

    @property
    def objects(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def attributes(self, namespace: str) -> dict[str, str]:
        resource, _, part = self.resource.partition("/")
        values = {"group": self.group, "resource": resource, "subresource": part, "verb": self.verb}
        values["namespace"] = namespace if self.is_namespaced else ""
        return {name: value for name, value in values.items() if value}


def calls_of(
    file: str, groups: Iterable[str], launcher: Launcher, served: Collection[Launcher], *, has_etcd: bool = False
) -> list[Call]:
    """Return the calls that a role in deploy/rbac allows, without those that a run with this launcher does not make.

    Args:
        groups: The API groups of the cluster; optional ones that it lacks are left out.
        served: The launchers that the cluster has, whose jobs a run lists to see which dataset versions they use.
        has_etcd: True if the training has an etcd of its own, which needs a Service.
    """
    role, present = role_of(file), {"", *groups}
    return [
        Call(group, resource, verb, role["kind"] == "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group in present or group not in OPTIONAL_GROUPS
        if (of := OF_LAUNCHERS.get(resource, launcher)) is launcher
        or (of in served and verb == "list")
        or (resource == "services" and has_etcd)
    ]


def review_of(call: Call, namespace: str, account: str) -> tuple[str, Manifest]:
    """Return the path and the access review that ask if the account may make the call.

    A local review needs permissions in the namespace only.
    """
    user = f"system:serviceaccount:{namespace}:{account}"
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    spec = {"resourceAttributes": call.attributes(namespace), "user": user, "groups": groups}
    if not call.is_namespaced:
        return f"/apis/{GROUP}/subjectaccessreviews", _review("SubjectAccessReview", spec)
    path = f"/apis/{GROUP}/namespaces/{namespace}/localsubjectaccessreviews"
    return path, {**_review("LocalSubjectAccessReview", spec), "metadata": {"namespace": namespace}}


def self_review_of(call: Call, namespace: str) -> tuple[str, Manifest]:
    spec = {"resourceAttributes": call.attributes(namespace)}
    return f"/apis/{GROUP}/selfsubjectaccessreviews", _review("SelfSubjectAccessReview", spec)


def judge_account(account: str, namespace: str, exists: bool) -> Finding:
    if exists:
        return ok(f"service account {account} exists in {namespace}")
    return missing(
        f"service account {account} does not exist in {namespace}",
        f"kubectl -n {namespace} create serviceaccount {account}\n"
        "or pass the account of your runs with --service-account",
    )


def judge_permissions(file: str, allowed: Mapping[Call, bool], account: str, namespace: str) -> Finding:
    refused = [call for call, is_allowed in allowed.items() if not is_allowed]
    if not refused:
        return ok(f"{account} has all permissions of deploy/rbac/{file}")
    evidence = f"{account} may not {summarized(refused)}"
    remedy = apply_command(role_and_binding(file, account, namespace), namespace)
    return missing(evidence, remedy) if file == NEEDED else warning(f"{evidence}: {OPTIONAL[file]}", remedy)


def judge_own_permissions(allowed: Mapping[Call, bool], account: str, obstacle: str) -> Finding:
    """Judge your own permissions, because those of the account cannot be checked."""
    refused = [call for call, is_allowed in allowed.items() if not is_allowed]
    own = f"may not {summarized(refused)}" if refused else "has all of them"
    return unknown(f"cannot check the permissions of {account} ({obstacle}); your own account {own}")


def summarized(calls: list[Call]) -> str:
    """Return a text such as "create/get pods, delete jobs.batch"."""
    verbs: dict[str, list[str]] = {}
    for call in calls:
        verbs.setdefault(call.objects, []).append(call.verb)
    shown = [f"{'/'.join(each)} {objects}" for objects, each in verbs.items()]
    return ", ".join(shown[:3]) + (f", and more with {len(shown) - 3} other kinds" if len(shown) > 3 else "")


def _review(kind: str, spec: Manifest) -> Manifest:
    return {"apiVersion": GROUP, "kind": kind, "spec": spec}
