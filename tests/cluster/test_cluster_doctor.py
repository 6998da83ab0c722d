"""The doctor on a real cluster: a namespace prepared as deploy/README.md says, then broken in one way after another."""

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_pipelines.doctor.examine import Examination
from kubetrain_pipelines.doctor.finding import Finding, Status
from kubetrain_pipelines.kubeflow.connection import Connection
from support.cli import interrupt, kubetrain, read_until, start
from support.cluster import COMPONENTS, ENDPOINT_IN_PODS, IMAGE, Bucket, as_account
from support.planned import planned

pytestmark = [pytest.mark.cluster, pytest.mark.core]

DEPLOY = Path(__file__).parents[2] / "deploy"
OK, WARNING, MISSING, UNKNOWN, _ = Status
SECRET_VALUES = " ".join(f"--from-literal={name}={value}" for name, value in Bucket.credentials.items())
# These tests run no training, so any image with Python will do.
SMALL = ("pods.cpu=50m", "pods.memory=64Mi", f"pods.image={IMAGE}", f"storage.transfer.image={COMPONENTS}")
NOWHERE = "http://127.0.0.1:1"
HEALTH = {"commit_sha": "4a3592cb", "tag_name": "2.17.0", "multi_user": False}


class Pipelines(BaseHTTPRequestHandler):
    """A fake of Kubeflow Pipelines with the only path that the doctor reads."""

    def do_GET(self) -> None:
        content = json.dumps(HEALTH).encode()
        self.send_response(200 if self.path == "/apis/v2beta1/healthz" else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *unused: Any) -> None: ...


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pipelines)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture
def api(namespace: str, tmp_path: Path) -> KubernetesApi:
    """The API of a namespace that is prepared as deploy/README.md says, with the secret."""
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy)
    settings = (deploy / "kustomization.yaml").read_text().replace("namespace: kubetrain", f"namespace: {namespace}")
    (deploy / "kustomization.yaml").write_text(settings.replace("# - rbac/events", "- rbac/events"))
    sh(f"kubectl apply -k {deploy}")
    sh(f"kubectl -n {namespace} create secret generic kubetrain-s3 {SECRET_VALUES}")
    return KubernetesApi.connect(namespace)


def sh(command: str) -> None:
    """Run a command as a user would paste it into a shell, with credentials in the environment."""
    done = subprocess.run(
        ["sh", "-c", command], check=False, env={**os.environ, **Bucket.credentials}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def examine(api: KubernetesApi, *pairs: str, with_pods: bool = False, **changes: Any) -> dict[str, Finding]:
    examination = Examination(
        api=api,
        parameters=planned(f"data.endpoint={ENDPOINT_IN_PODS}", *SMALL, *pairs),
        say=print,
        connection=Connection(endpoint=NOWHERE),
        with_pods=with_pods,
        **changes,
    )
    return {each.check: each for each in examination.findings()}


def first_command(finding: Finding) -> str:
    """Return the first of the alternatives in a remedy."""
    return finding.remedy.partition("\nor ")[0]


def left_behind(api: KubernetesApi) -> list[str]:
    paths = [api.path(*place) for place in (("v1", "pods"), ("v1", "persistentvolumeclaims"), ("batch/v1", "jobs"))]
    return [each["metadata"]["name"] for path in paths for each in (api.get(path) or {}).get("items", [])]


def await_nothing_left(api: KubernetesApi, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while left := left_behind(api):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_a_prepared_namespace_lacks_nothing(api: KubernetesApi, endpoint: str, digits: Bucket) -> None:
    uris = [
        f"data.uri={digits.uri('digits')}",
        f"model.uri={digits.uri('probed')}",
        f"data.endpoint={ENDPOINT_IN_PODS}",
    ]
    pairs = [part for uri in uris for part in ("--set", uri)]
    done = kubetrain("doctor", "--json", "--namespace", api.namespace, "--endpoint", endpoint, *pairs)
    report = json.loads(done.output[done.output.index("{") :])
    verdicts = {each["check"]: each["verdict"] for each in report["findings"]}
    optional = {"permissions: storage classes", "admission: launch step"}
    assert {name for name, verdict in verdicts.items() if verdict == "warning"} == optional, done.output
    assert [name for name, verdict in verdicts.items() if verdict == "skipped"] == ["queue"], done.output
    assert set(verdicts.values()) == {"ok", "warning", "skipped"}, done.output
    assert (done.exit_code, report["ok"]) == (0, True)
    assert {"components image", "trainer image", "write", "read-only mount", "S3 dataset", "S3 model"} <= set(verdicts)
    assert not [secret for secret in Bucket.credentials.values() if secret in done.output]
    assert digits.keys("probed") == []
    await_nothing_left(api)


def test_the_remedies_prepare_an_unprepared_namespace(namespace: str) -> None:
    api = KubernetesApi.connect(namespace)
    bare = examine(api)
    lacking = ("account", "permissions: launch", "permissions: events", "secret kubetrain-s3")
    assert [bare[name].status for name in lacking] == [MISSING, MISSING, WARNING, WARNING]
    assert (
        "pipeline-runner may not create/get/list/watch/patch/delete pytorchjobs" in bare["permissions: launch"].evidence
    )
    for name in lacking:
        sh(first_command(bare[name]))
    assert [examine(api)[name].status for name in lacking] == [OK] * 4


def test_an_optional_permission_is_granted_by_its_remedy(api: KubernetesApi) -> None:
    finding = examine(api)["permissions: storage classes"]
    assert finding.status is WARNING
    sh(finding.remedy)
    try:
        assert examine(api)["permissions: storage classes"].status is OK
    finally:  # the binding is cluster-wide; the role may be in use elsewhere
        sh(f"kubectl delete clusterrolebinding kubetrain-storage-classes-{api.namespace}-kubetrain-launcher")


def test_a_quota_that_is_too_small(api: KubernetesApi) -> None:
    sh(f"kubectl -n {api.namespace} create quota small --hard=requests.cpu=60m,pods=1,requests.storage=10Gi")
    time.sleep(1)  # until the quota is in effect
    small = examine(api)["quota"]
    assert small.status is MISSING
    assert "small allows 60m requests.cpu, of which 0 is used, but the run needs 200m" in small.evidence
    assert "300Gi" in small.evidence, "of both PVCs, and of the one by which the pods read the dataset"
    sh(first_command(small))
    assert examine(api)["quota"].status is OK


def test_pods_that_the_namespace_refuses(api: KubernetesApi) -> None:
    worker = "admission: launch_training worker"
    sh(
        f"kubectl -n {api.namespace} apply -f - <<'EOF'\n"
        "apiVersion: v1\nkind: LimitRange\nmetadata: {name: small}\n"
        "spec: {limits: [{type: Container, max: {memory: 1Gi}}]}\nEOF"
    )
    large = examine(api, "pods.memory=2Gi")
    assert "maximum memory usage per Container is 1Gi" in large[worker].evidence
    assert large["admission: sync_dataset pod"].status is OK
    refused = examine(api, "pods.host_network=true")[worker]
    assert (refused.status, "violates PodSecurity" in refused.evidence) == (MISSING, True)
    sh(first_command(refused))
    assert examine(api, "pods.host_network=true")[worker].status is OK


def test_what_the_cluster_does_not_have(api: KubernetesApi) -> None:
    found = examine(
        api,
        "pods.gpu_resource=example.com/gpu",
        "pods.gpus=8",
        "storage.class=none",
        "pods.secret_env.T=hub/token",
    )
    assert "no node has 8 example.com/gpu: the maximum is 0" in found["nodes"].evidence
    assert "storage class none does not exist (existing: shared-files" in found["storage class"].evidence
    assert f"secret hub does not exist in {api.namespace}" in found["secret hub"].evidence
    assert {found[name].status for name in ("nodes", "storage class", "secret hub")} == {MISSING}


def test_an_account_with_few_permissions_is_told_its_own(api: KubernetesApi) -> None:
    found = examine(as_account("kubetrain-launcher", api))
    assert found["launcher"].status is OK
    for name in ("training operator", "permissions: launch", "nodes", "quota", "secret kubetrain-s3", "namespace"):
        assert found[name].status is UNKNOWN, found[name]
    assert "your own account has all of them" in found["permissions: launch"].evidence
    assert "your own account may not get storageclasses" in found["permissions: storage classes"].evidence
    assert found["staging PVC"].status is OK


def test_the_checks_that_pods_make(api: KubernetesApi, digits: Bucket) -> None:
    pairs = (f"data.uri={digits.uri('nothing-here')}", "model.uri=s3://no-such-bucket/models")
    image = "pods.image=docker.io/library/python:there-is-no-such-tag"
    found = examine(api, *pairs, image, with_pods=True, tests_dataset=True, tests_model=True)
    verdicts = {name: found[name].status for name in ("components image", "write", "trainer image", "read-only mount")}
    assert list(verdicts.values()) == [OK, OK, MISSING, UNKNOWN], found
    assert "contains no objects" in found["S3 dataset"].evidence
    assert re.search("no-such-bucket", found["S3 model"].evidence)
    assert {found[name].status for name in ("S3 dataset", "S3 model")} == {MISSING}
    await_nothing_left(api)


def test_ctrl_c_leaves_nothing_behind(api: KubernetesApi) -> None:
    process = start("doctor", "--namespace", api.namespace)
    read_until(process, "a pod writes to new PVCs")
    while not left_behind(api):
        time.sleep(0.1)
    assert interrupt(process).exit_code == 130
    await_nothing_left(api)
