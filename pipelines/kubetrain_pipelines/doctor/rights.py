"""What the account of a run may do, against the roles in deploy/. Pure functions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.doctor.deploy_files import apply_command, granting, role_of
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, unknown, warning

GROUP = "authorization.k8s.io/v1"
NEEDED = "launch.yaml"
OPTIONAL = {
    "events.yaml": "failures are named by what jobs and pods say of themselves",
    "storage_classes.yaml": "exposure auto shares a ReadWriteMany staging claim",
    "snapshots.yaml": "exposure snapshot does not work",
}
"""By file, what is so without the right."""
OF_KUBEFLOW_PIPELINES = "argoproj.io"


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


def calls_of(file: str, groups: Iterable[str]) -> list[Call]:
    """Every call that the role in this file of deploy/rbac allows; of groups that the cluster lacks none is made."""
    role, there = role_of(file), {"", *groups}
    return [
        Call(group, resource, verb, role["kind"] == "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if group in there or group not in (OF_KUBEFLOW_PIPELINES, "snapshot.storage.k8s.io")
    ]


def review_of(call: Call, namespace: str, account: str) -> tuple[str, Manifest]:
    """The question whether the account may make the call: where it is asked, and how.

    In its own namespace even those may ask who administer no more than that.
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


def judge_account(account: str, namespace: str, is_there: bool) -> Finding:
    if is_there:
        return ok(f"service account {account} is in {namespace}")
    return missing(
        f"there is no service account {account} in {namespace}",
        f"kubectl -n {namespace} create serviceaccount {account}\nor name the account of your runs by --account",
    )


def judge_rights(file: str, allowed: Mapping[Call, bool], account: str, namespace: str) -> Finding:
    refused = [call for call, is_allowed in allowed.items() if not is_allowed]
    if not allowed:
        return ok("not needed: the cluster has no such objects")
    if not refused:
        return ok(f"{account} may make all {len(allowed)} calls of deploy/rbac/{file}")
    evidence = f"{account} may not {listed(refused)}"
    remedy = apply_command(granting([file], account, namespace), namespace)
    return missing(evidence, remedy) if file == NEEDED else warning(f"{evidence}: {OPTIONAL[file]}", remedy)


def judge_own_rights(allowed: Mapping[Call, bool], account: str, obstacle: str) -> Finding:
    """What we may do ourselves, where nobody tells us of the account."""
    refused = [call for call, is_allowed in allowed.items() if not is_allowed]
    ours = f"we ourselves may not {listed(refused)}" if refused else f"we ourselves may make all {len(allowed)} calls"
    return unknown(f"of {account} nobody tells us ({obstacle}); {ours}")


def listed(calls: list[Call]) -> str:
    """create/get pods, delete jobs.batch"""
    verbs: dict[str, list[str]] = {}
    for call in calls:
        verbs.setdefault(call.objects, []).append(call.verb)
    shown = [f"{'/'.join(each)} {objects}" for objects, each in verbs.items()]
    return ", ".join(shown[:3]) + (f" and as much with {len(shown) - 3} more kinds" if len(shown) > 3 else "")


def _review(kind: str, spec: Manifest) -> Manifest:
    return {"apiVersion": GROUP, "kind": kind, "spec": spec}
