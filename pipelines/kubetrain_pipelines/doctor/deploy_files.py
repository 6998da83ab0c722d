"""The files of deploy/, as they are to be applied for one namespace and account."""

from pathlib import Path

import yaml

from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

# A wheel has them beside the package, a checkout at its root.
PLACES = [Path(__file__).parents[1] / "deploy", Path(__file__).parents[3] / "deploy"]


def deploy_folder() -> Path:
    for place in PLACES:
        if place.is_dir():
            return place
    raise KubetrainError(f"{PLACES[0]} is missing, which says what a launch may do: install kubetrain again")


def role_of(file: str) -> Manifest:
    """The role in a file of deploy/rbac."""
    (role,) = [each for each in _documents(file) if each["kind"] in ("Role", "ClusterRole")]
    return role


def granting(files: list[str], account: str, namespace: str) -> list[Manifest]:
    """The roles of these files of deploy/rbac, each bound to this account."""
    return [made for file in files for role in [role_of(file)] for made in (role, _binding(role, account, namespace))]


def apply_command(manifests: list[Manifest], namespace: str = "") -> str:
    text = yaml.safe_dump_all(manifests, sort_keys=False, default_flow_style=None, width=110).rstrip()
    return f"kubectl{f' -n {namespace}' if namespace else ''} apply -f - <<'EOF'\n{text}\nEOF"


def _binding(role: Manifest, account: str, namespace: str) -> Manifest:
    # One role may be bound for several accounts, and a binding of the whole cluster for several namespaces.
    place = f"{namespace}-" if role["kind"] == "ClusterRole" else ""
    name = role["metadata"]["name"]
    return {
        "apiVersion": role["apiVersion"],
        "kind": f"{role['kind']}Binding",
        "metadata": {"name": f"{name}-{place}{account}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _documents(file: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all((deploy_folder() / "rbac" / file).read_text()) if each]
