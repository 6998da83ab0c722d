"""Images and deploy/: what a typing error there would only show on somebody's cluster."""

import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_components.bring_code.pack import ALWAYS_IGNORED, WORKSPACE
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import TRAINING_KINDS
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_pipelines.definitions import images
from support.api_server import PODS, ApiServer
from support.manifests import batch, command, indexed, pytorch, templates_in, tensorflow, trainjob

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(DEPLOY.rglob("*.yaml"))
DOCKERFILES = sorted([*ROOT.glob("trainer/Dockerfile.*"), ROOT / "components" / "Dockerfile"])
RULE = ("apiGroups", "resources", "verbs")
OBJECT_VERBS = {"create", "get", "list", "watch", "patch", "delete"}
# What the API has and our code asks for: a grant of anything else is one of nothing, or of too much.
GRANTABLE = {
    **{("kubeflow.org", kind.traits.plural): OBJECT_VERBS for kind in TRAINING_KINDS},
    ("trainer.kubeflow.org", "trainjobs"): OBJECT_VERBS,
    ("ray.io", "rayjobs"): OBJECT_VERBS,
    ("trainer.kubeflow.org", "trainingruntimes"): {"create", "list", "patch", "delete"},
    ("batch", "jobs"): OBJECT_VERBS,
    ("", "services"): {"create", "list", "patch", "delete"},
    ("", "pods"): {"get", "list", "watch", "delete"},
    ("", "pods/log"): {"get"},
    ("", "persistentvolumeclaims"): OBJECT_VERBS - {"watch"},
    ("storage.k8s.io", "storageclasses"): {"get"},
    ("", "events"): {"list", "watch"},
    ("kueue.x-k8s.io", "localqueues"): {"list", "watch"},
    ("argoproj.io", "workflows"): {"get"},
}


def objects(*kinds: str) -> list[dict[str, Any]]:
    documents = [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]
    return [document for document in documents if isinstance(document, dict) and document.get("kind") in kinds]


@pytest.mark.parametrize("role", objects("Role", "ClusterRole"), ids=lambda role: role["metadata"]["name"])
def test_roles_grant_what_exists_and_is_asked_for(role: dict[str, Any]) -> None:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                assert set(rule["verbs"]) <= GRANTABLE[group, resource]


@pytest.mark.parametrize("make", [pytorch, tensorflow, trainjob, indexed, batch], ids=lambda make: make.__name__)
def test_the_role_of_launches_grants_what_a_launcher_asks_for(
    make: Callable[[], Job], server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    job = make()
    with KubernetesBackend.connect() as backend:
        handle = backend.create(job)
        made = next(
            each for path, each in server.objects.items() if path.endswith(f"/{job.kind.traits.plural}/{handle.name}")
        )
        labels = {**made["metadata"]["labels"], job.kind.traits.job_name_label: handle.name}
        metadata = {"labels": labels, "ownerReferences": [{"uid": handle.uid}]}
        server.put(f"{PODS}/one", metadata=metadata, spec={"containers": []}, status={"phase": "Running"})
        assert next(backend.watch(handle)) is not None
        backend.annotate(handle, {"kubetrain/progress": "step 1"})
        backend.clean(handle)
        backend.delete(handle)
    (role,) = (each for each in objects("Role") if each["metadata"]["name"] == "kubetrain-launch")
    asked = {call for request in server.requests if (call := call_of(request))}
    assert asked - {call for rule in role["rules"] for call in product(*(rule[name] for name in RULE))} == set()
    assert {verb for _, resource, verb in asked if resource == "pods"} >= {"list", "watch", "delete"}


def call_of(request: str) -> tuple[str, str, str] | None:
    """Return the API group, the resource and the verb of a request for objects in a namespace."""
    if not (found := re.match(r"(\w+) /(?:api|apis/([^/]+))/\w+/namespaces/\w+/(\w+)(/[\w-]+)?(/\w+)?", request)):
        return None
    method, group, plural, name, part = found.groups()
    reading = "get" if name else "watch" if "watch=true" in request else "list"
    return group or "", f"{plural}{part or ''}", {"GET": reading, "POST": "create"}.get(method, method.lower())


def test_every_binding_names_a_role_and_an_account_of_ours() -> None:
    roles = {(each["kind"], each["metadata"]["name"]) for each in objects("Role", "ClusterRole")}
    accounts = {each["metadata"]["name"] for each in objects("ServiceAccount")}
    for binding in objects("RoleBinding", "ClusterRoleBinding"):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        assert {subject["name"] for subject in binding["subjects"]} <= accounts


def test_what_kustomize_reads_is_there() -> None:
    """Also what is commented out, for those who want it."""
    listed = re.findall(r"^  (?:# )?- (\S+)", (DEPLOY / "kustomization.yaml").read_text(), re.M)
    assert set(listed) == {
        str(path.relative_to(DEPLOY)) for path in MANIFESTS if path.parent.name in ("rbac", "launcher")
    }


@pytest.mark.skipif(not shutil.which("kubectl"), reason="renders with kubectl")
def test_kustomize_binds_the_account_that_it_creates_in_your_namespace(tmp_path: Path) -> None:
    """Also in a ClusterRoleBinding, where a namespace in the file would stay."""
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    settings = (DEPLOY / "kustomization.yaml").read_text()
    settings = settings.replace("# - rbac/", "- rbac/").replace("namespace: kubetrain", "namespace: team-a")
    (tmp_path / "kustomization.yaml").write_text(settings)
    done = subprocess.run(["kubectl", "kustomize", tmp_path], check=True, capture_output=True, text=True)
    bindings = [each for each in yaml.safe_load_all(done.stdout) if each["kind"].endswith("RoleBinding")]
    assert "ClusterRoleBinding" in {each["kind"] for each in bindings}
    assert {subject["namespace"] for each in bindings for subject in each["subjects"]} == {"team-a"}


def test_the_network_policy_admits_the_pods_of_every_kind_and_the_metrics() -> None:
    spec = yaml.safe_load((DEPLOY / "launcher" / "network_policy.yaml").read_text())["spec"]
    assert "launcher/network_policy.yaml" in yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    ((key,),) = [[each["key"] for each in spec["podSelector"]["matchExpressions"]]]
    assert spec["ingress"][0]["from"] == [{"podSelector": spec["podSelector"]}]
    made = [pytorch(metrics_port=8000), tensorflow(), trainjob(), indexed(), batch(), command("mpi"), command("jax")]
    templates = templates_in([manifests_of(job) for job in made])
    assert len(templates) >= len(made)
    assert all(key in template["metadata"]["labels"] for template in templates)
    ports = [port["name"] for port in templates[0]["spec"]["containers"][0]["ports"] if port["containerPort"] == 8000]
    assert ports == [spec["ingress"][1]["ports"][0]["port"]]


def test_the_operators_template_passes_pod_security_restricted() -> None:
    (container,) = yaml.safe_load((DEPLOY / "operator" / "init_container.yaml").read_text())
    assert container["image"] == "{{.InitContainerImage}}"
    assert "nslookup {{.MasterAddr}}" in container["command"][-1]
    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_the_operator_finds_the_template_where_it_looks_by_itself() -> None:
    (patch,) = objects("Deployment")
    pod = patch["spec"]["template"]["spec"]
    (mount,), (volume,) = pod["containers"][0]["volumeMounts"], pod["volumes"]
    settings = yaml.safe_load((DEPLOY / "operator" / "kustomization.yaml").read_text())
    (generator,) = settings["configMapGenerator"]
    assert mount["name"] == volume["name"]
    assert volume["configMap"]["name"] == generator["name"]
    assert settings["generatorOptions"]["disableNameSuffixHash"], "the patch names it"
    (key, file) = generator["files"][0].split("=")
    assert f"{mount['mountPath']}/{key}" == "/etc/config/initContainer.yaml"
    assert (DEPLOY / "operator" / file).is_file()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_a_numeric_user(path: Path) -> None:
    """Kubernetes cannot tell whether a user with a name is root, and refuses it where none may be."""
    user = re.findall(r"^USER (.*)", path.read_text(), re.M)[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_change_of_the_code_installs_nothing_anew(path: Path) -> None:
    last_stage = path.read_text().rsplit("\nFROM ", 1)[1]
    instructions = re.findall(r"^(RUN|COPY.*|ARG REVISION)", last_stage, re.M)
    code = next(index for index, each in enumerate(instructions) if "--from=code" in each)
    assert "RUN" not in instructions[code:]
    assert instructions.index("ARG REVISION") > code


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_is_there_and_not_ignored(path: Path) -> None:
    allowed = re.findall(r"^!(.*)", (ROOT / ".dockerignore").read_text(), re.M)
    copied = re.findall(r"^COPY (?!--from)(\S+)", path.read_text(), re.M)
    assert copied
    for source in copied:
        assert list(ROOT.glob(source)), source
        assert any(source == each or source.startswith(f"{each}/") for each in allowed), source


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize(
    ("arguments", "installed"),
    [
        ({"DEVICE": "gpu"}, "libibverbs1 ibverbs-providers librdmacm1"),
        ({"DEVICE": "gpu", "SYSTEM_PACKAGES": "g++"}, "libibverbs1 ibverbs-providers librdmacm1 g++"),
        ({"DEVICE": "gpu", "INFINIBAND_PACKAGES": ""}, ""),
        ({"DEVICE": "cpu"}, ""),
        ({"DEVICE": "cpu", "SYSTEM_PACKAGES": "g++"}, "g++"),
    ],
)
def test_images_for_gpus_have_what_nccl_needs_for_infiniband(
    framework: str, arguments: dict[str, str], installed: str, tmp_path: Path
) -> None:
    last_stage = (ROOT / "trainer" / f"Dockerfile.{framework}").read_text().rsplit("\nFROM ", 1)[1]
    [command] = re.findall(r"^RUN (if (?:.*\\\n)*.*)", last_stage, re.M)
    for name in ("apt-get", "rm"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$0 $*"\n')
        (tmp_path / name).chmod(0o755)
    defaults = {name: value.strip('"') for name, value in re.findall(r"^ARG (\w+)=(.*)", last_stage, re.M)}
    said = subprocess.run(
        ["/bin/sh", "-c", command],
        env={**defaults, **arguments, "PATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    packages = re.findall(r"apt-get install -y -qq --no-install-recommends *(.*?) *\n", said)
    assert packages == ([installed] if installed else [])


def test_where_packages_come_from_is_the_builders_business() -> None:
    for path in [*DOCKERFILES, ROOT / "Makefile", ROOT / "constraints.txt"]:
        assert re.search(r"https?://|index-url|find-links|trusted-host", path.read_text()) is None, path


def test_images_are_built_under_the_names_that_pipelines_use() -> None:
    commands = subprocess.run(
        ["make", "--dry-run", "images", "IMAGE_BUILDER=docker"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert set(re.findall(r"--tag (\S+)", commands)) == {images.COMPONENTS, *images.TRAINERS.values()}


def test_an_image_of_your_own_gets_nothing_that_is_usually_secret() -> None:
    lines = (ROOT / "examples" / "own_image" / "Dockerfile.dockerignore").read_text().splitlines()
    ignored = [line for line in lines if not line.startswith("#")]
    assert ignored == [f"**/{pattern}" for pattern in (*ALWAYS_IGNORED, WORKSPACE)]
