"""Check the storage class, PVCs, exposure and secrets of a run. Pure functions."""

from collections.abc import Collection, Iterable, Sequence

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim, objections, reading_problem
from kubetrain_components.expose_dataset.expose import CannotExpose, ExposureRequest, plan_exposure
from kubetrain_components.expose_dataset.storage_facts import StorageFacts, is_disk
from kubetrain_components.manifest import Manifest
from kubetrain_components.object_store.credentials import REQUIRED_VARIABLES
from kubetrain_pipelines.doctor.finding import Finding, Status, missing, ok, warning
from kubetrain_pipelines.doctor.needs import NeededSecret

FILES = "use a file system: --set storage.class=ANOTHER, or name a PVC of one"
BUCKET_OR_FILES = f"keep checkpoints in your bucket: --set storage.output=s3://BUCKET/PREFIX\nor {FILES}"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def judge_storage_class(wanted: str, classes: Sequence[Manifest], *, is_needed: bool) -> Finding:
    """
    Args:
        wanted: The name of the class; empty for the cluster's default.
        is_needed: True if a PVC has to be created.
    """
    names = [item["metadata"]["name"] for item in classes]
    found = class_named(wanted, classes)
    if found is not None:
        binding = "when a pod uses it" if found.get("volumeBindingMode") == "WaitForFirstConsumer" else "immediately"
        default = "" if wanted else ", the default"
        return ok(f"{found['metadata']['name']}{default}, of {found['provisioner']}: binds a PVC {binding}")
    if not is_needed:
        return ok("not needed: the PVCs exist")
    existing = f"existing: {', '.join(names)}" if names else "the cluster has none"
    if wanted:
        return missing(f"storage class {wanted} does not exist ({existing})", _choose_class(names))
    patch = f'{{"metadata": {{"annotations": {{"{DEFAULT_CLASS}": "true"}}}}}}'
    make_default = f"\nkubectl patch storageclass {names[0]} -p '{patch}'" if names else ""
    return missing(f"no storage class is the default ({existing})", _choose_class(names) + make_default)


def class_named(wanted: str, classes: Sequence[Manifest]) -> Manifest | None:
    """Return the class with this name; if it is empty, the default class."""
    for item in classes:
        is_default = (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        if item["metadata"]["name"] == wanted or (not wanted and is_default):
            return item
    return None


def judge_claim(
    wanted: WantedClaim, found: Manifest | None, namespace: str, classes: Sequence[Manifest] = ()
) -> Finding:
    is_shared, remedy = wanted.access_mode == "ReadWriteMany", BUCKET_OR_FILES if wanted.purpose == "output" else FILES
    if found is None:
        provisioner = (class_named(wanted.storage_class, classes) or {}).get("provisioner", "")
        if is_shared and is_disk(provisioner):
            disks = f"{provisioner} gives disks, which pods on several nodes cannot write"
            return missing(f"{wanted.name} would never be bound: {disks}", remedy)
        return ok(f"{wanted.name} will be created: {wanted.size}, {wanted.access_mode}")
    modes, phase = ", ".join(found["spec"]["accessModes"]), (found.get("status") or {}).get("phase", "Pending")
    for objection in objections(found):
        return missing(
            f"{wanted.name} {objection}",
            f"--set storage.{wanted.purpose}_claim=ANOTHER\n"
            f"or, if you don't need it: kubectl -n {namespace} delete pvc {wanted.name}",
        )
    if is_shared and "ReadWriteMany" not in modes:
        return warning(f"{wanted.name} is {modes}: pods on several nodes cannot write to it", remedy)
    return ok(f"{wanted.name} exists: {modes}, {phase}")


def judge_data_claim(name: str, found: Manifest | None, namespace: str) -> Finding:
    """Judge the PVC of data that pods read where it is."""
    other = "--set data.uri=pvc://ANOTHER/PATH"
    if problem := reading_problem(name, found):
        return missing(f"in {namespace}, {problem}", other)
    modes = ", ".join(found["spec"]["accessModes"] if found else ())
    if "Many" in modes:
        return ok(f"{name} is {modes}")
    return warning(f"{name} is {modes}: pods on several nodes cannot read it", other)


def judge_exposure(request: ExposureRequest, facts: StorageFacts) -> Finding:
    """Judge how training pods will get read-only access to a dataset version."""
    try:
        exposure = plan_exposure(request, facts)
    except CannotExpose as objection:
        return missing(objection.cause, objection.remedy)
    return ok(f"by {exposure.mode}: {exposure.reason}")


def no_static_claim(name: str, namespace: str) -> Finding:
    return missing(
        f"PVC {name or '(none)'} for storage.exposure=static does not exist in {namespace}",
        "create it as docs/administrators/storage.md says, and name it: --set storage.static_claim=NAME",
    )


def judge_secret(name: str, needed: NeededSecret, keys: Collection[str] | None, namespace: str) -> Finding:
    """
    Args:
        keys: The keys of the secret; None if it does not exist.
    """
    create = create_pull_secret(name, namespace) if needed.pulls_images else create_secret(name, needed.keys, namespace)
    if keys is None:
        absent = f"secret {name} does not exist in {namespace}"
        return warning(f"{absent}; it is optional", create) if needed.is_optional else missing(absent, create)
    if lacking := sorted(needed.keys - set(keys)):
        return missing(f"secret {name} has no {' and no '.join(lacking)}", create)
    return ok(f"{name} has {', '.join(sorted(needed.keys or keys))}")


def judge_s3_secret(name: str, keys: Collection[str] | None, namespace: str, s3: Status) -> Finding:
    """Judge the secret for S3, which is not needed if the pods' service account or node has access.

    Args:
        s3: The status of listing the dataset.
    """
    finding = judge_secret(name, NeededSecret(frozenset(REQUIRED_VARIABLES)), keys, namespace)
    if keys is not None or s3 is Status.MISSING:
        return finding
    if s3 is Status.OK:
        return ok(f"{finding.evidence}, and the pods can read S3 without it, through their service account or node")
    return warning(f"{finding.evidence}: pods use their own service account or node for S3", finding.remedy)


def create_secret(name: str, keys: Iterable[str], namespace: str) -> str:
    """Return a command that takes the values from the environment, which keeps them out of the shell's history."""
    literals = " ".join(f'--from-literal={key}="${{{key}}}"' for key in sorted(keys))
    return (
        f"kubectl -n {namespace} create secret generic {name} {literals} --dry-run=client -o yaml "
        f"| kubectl -n {namespace} apply -f -"
    )


def create_pull_secret(name: str, namespace: str) -> str:
    return (
        f"kubectl -n {namespace} create secret docker-registry {name} "
        '--docker-server="$REGISTRY" --docker-username="$REGISTRY_USER" --docker-password="$REGISTRY_PASSWORD"'
    )


def _choose_class(names: Sequence[str]) -> str:
    return f"--set storage.class={names[0] if names else 'NAME, after the administrator has created it'}"
