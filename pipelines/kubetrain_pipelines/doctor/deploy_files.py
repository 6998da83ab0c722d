"""The files of deploy/, adapted to one namespace and account."""

from pathlib import Path

import yaml

from kubetrain_components.manifest import Manifest
from kubetrain_components.manifest_text import as_yaml
from kubetrain_trainer.errors import KubetrainError

# In a wheel deploy/ is inside the package, in a checkout at the root.
PLACES = [Path(__file__).parents[1] / "deploy", Path(__file__).parents[3] / "deploy"]


def deploy_folder() -> Path:
    for place in PLACES:
        if place.is_dir():
            return place
    raise KubetrainError(f"{PLACES[0]}, which has the permissions of a run, does not exist: install kubetrain again")


def role_of(file: str) -> Manifest:
    """Return the role in a file of deploy/rbac."""
    documents = yaml.safe_load_all((deploy_folder() / "rbac" / file).read_text())
    role: Manifest
    (role,) = [document for document in documents if document and document["kind"] in ("Role", "ClusterRole")]
    return role


def default_requests() -> Manifest:
    manifest: Manifest = yaml.safe_load((deploy_folder() / "launcher" / "default_requests.yaml").read_text())
    return manifest


def role_and_binding(file: str, account: str, namespace: str) -> list[Manifest]:
    """Return the role in a file of deploy/rbac, and its binding to the account."""
    role = role_of(file)
    # One role may be bound to several accounts, and a cluster-wide binding must also name the namespace.
    prefix = f"{namespace}-" if role["kind"] == "ClusterRole" else ""
    name = role["metadata"]["name"]
    binding = {
        "apiVersion": role["apiVersion"],
        "kind": f"{role['kind']}Binding",
        "metadata": {"name": f"{name}-{prefix}{account}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    return [role, binding]


def apply_command(manifests: list[Manifest], namespace: str) -> str:
    text = as_yaml(manifests, default_flow_style=None, width=110).rstrip()
    return f"kubectl -n {namespace} apply -f - <<'EOF'\n{text}\nEOF"
