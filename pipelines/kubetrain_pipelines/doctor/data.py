"""Storage classes, claims, exposure, secrets: where a run's data is and who may read it. Pure functions."""

from collections.abc import Collection, Sequence

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim, objections
from kubetrain_components.expose_dataset.expose import ExposureRequest, plan_exposure
from kubetrain_components.expose_dataset.storage_facts import StorageFacts
from kubetrain_components.manifest import Manifest
from kubetrain_components.object_store.credentials import REQUIRED_VARIABLES
from kubetrain_pipelines.doctor.finding import Finding, Verdict, missing, ok, warning
from kubetrain_pipelines.doctor.needs import NeededSecret
from kubetrain_trainer.errors import InvalidSetting

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def judge_storage_class(wanted: str, classes: Sequence[Manifest], *, is_needed: bool) -> Finding:
    """
    Args:
        wanted: Its name; empty: the cluster's default.
        is_needed: Whether any claim has to be made.
    """
    names = [each["metadata"]["name"] for each in classes]
    found = class_named(wanted, classes)
    if found is not None:
        binding = "once a pod uses it" if found.get("volumeBindingMode") == "WaitForFirstConsumer" else "at once"
        kind = "" if wanted else ", the default"
        return ok(f"{found['metadata']['name']}{kind}, of {found['provisioner']}: a claim is bound {binding}")
    if not is_needed:
        return ok("not needed: the claims are there")
    there = f"there are: {', '.join(names)}" if names else "there are none"
    if wanted:
        return missing(f"there is no storage class {wanted} ({there})", _choose_class(names))
    patch = f'{{"metadata": {{"annotations": {{"{DEFAULT_CLASS}": "true"}}}}}}'
    make_default = f"\nkubectl patch storageclass {names[0]} -p '{patch}'" if names else ""
    return missing(f"no storage class is the default ({there})", _choose_class(names) + make_default)


def class_named(wanted: str, classes: Sequence[Manifest]) -> Manifest | None:
    """Of that name; without one, the default."""
    for each in classes:
        is_default = (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        if each["metadata"]["name"] == wanted or (not wanted and is_default):
            return each
    return None


def judge_claim(wanted: WantedClaim, found: Manifest | None, namespace: str) -> Finding:
    if found is None:
        return ok(f"{wanted.name} will be made: {wanted.size}, {wanted.access_mode}")
    modes, phase = ", ".join(found["spec"]["accessModes"]), (found.get("status") or {}).get("phase", "Pending")
    for objection in objections(found):
        return missing(
            f"{wanted.name} {objection}",
            f"--set {wanted.purpose}_claim=ANOTHER\n"
            f"or, if nobody needs it: kubectl -n {namespace} delete pvc {wanted.name}",
        )
    if wanted.access_mode == "ReadWriteMany" and "ReadWriteMany" not in modes:
        return warning(
            f"{wanted.name} is {modes}: pods on several nodes cannot write to it",
            f"--set {wanted.purpose}_claim=ANOTHER",
        )
    return ok(f"{wanted.name} is there: {modes}, {phase}")


def judge_exposure(request: ExposureRequest, facts: StorageFacts) -> Finding:
    """How training pods will see a dataset version read-only."""
    try:
        exposure = plan_exposure(request, facts)
    except InvalidSetting as objection:
        evidence, _, remedy = str(objection).rpartition("; ")
        return missing(evidence, remedy)
    return ok(f"by {exposure.mode}: {exposure.reason}")


def judge_secret(name: str, needed: NeededSecret, keys: Collection[str] | None, namespace: str) -> Finding:
    """
    Args:
        keys: Those that the secret has; None: there is none.
    """
    if needed.pulls_images:
        make = (
            f"kubectl -n {namespace} create secret docker-registry {name} "
            '--docker-server="$REGISTRY" --docker-username="$REGISTRY_USER" --docker-password="$REGISTRY_PASSWORD"'
        )
        return ok(f"{name} is there") if keys is not None else missing(f"there is no secret {name}", make)
    make = make_secret(name, sorted(needed.keys), namespace)
    if keys is None and needed.is_optional:
        return warning(f"there is no secret {name} in {namespace}, which may be so", make)
    if keys is None:
        return missing(f"there is no secret {name} in {namespace}", make)
    if lacking := sorted(needed.keys - set(keys)):
        return missing(f"the secret {name} has no {' and no '.join(lacking)}", make)
    return ok(f"{name} has {', '.join(sorted(needed.keys or keys))}")


def judge_s3_secret(name: str, keys: Collection[str] | None, namespace: str, s3: Verdict) -> Finding:
    """The one that may be missing, where the pods' account or node has access.

    Args:
        s3: Whether the dataset could be listed.
    """
    finding = judge_secret(name, NeededSecret(frozenset(REQUIRED_VARIABLES)), keys, namespace)
    if keys is not None or s3 is Verdict.MISSING:
        return finding
    if s3 is Verdict.OK:
        return ok(f"there is no secret {name}, and S3 answers without it: by the pods' account or node")
    return warning(f"{finding.evidence}: S3 is asked with the pods' own account or node", finding.remedy)


def make_secret(name: str, keys: Sequence[str], namespace: str) -> str:
    """Values come from the caller's environment, and so into no history."""
    literals = " ".join(f'--from-literal={key}="${{{key}}}"' for key in keys)
    return (
        f"kubectl -n {namespace} create secret generic {name} {literals} --dry-run=client -o yaml "
        f"| kubectl -n {namespace} apply -f -"
    )


def _choose_class(names: Sequence[str]) -> str:
    return f"--set storage_class={names[0] if names else 'NAME, once the administrator has made one'}"
