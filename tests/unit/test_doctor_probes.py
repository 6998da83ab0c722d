"""What doctor creates on a cluster: pods like those of a run, with an end of their own, and nothing that stays."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.definitions import images
from kubetrain_pipelines.doctor.examine import Examination
from kubetrain_pipelines.doctor.finding import Finding, Status
from support.api_server import PODS, ApiServer, Handler, answer
from support.planned import planned

JOBS = "/apis/batch/v1/namespaces/tests/jobs"
CLAIMS = "/api/v1/namespaces/tests/persistentvolumeclaims"
SEEN = {"write": "wrote", "read_only": "cannot write", "dataset": "read", "model": "wrote", "output": "wrote"}


def finish_at_once(handler: Handler) -> bool:
    """Create a job that has already succeeded, with its pod, as a cluster would after a while."""
    body, api = handler.api.bodies[-1], handler.api
    name = body["metadata"]["name"]
    complete = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}
    made = api.put(f"{JOBS}/{name}", **body, status=complete)
    if body["spec"].get("parallelism", 1):
        report = {"exitCode": 0, "message": json.dumps({"status": "completed", "seen": SEEN})}
        ended = {"name": "main", "restartCount": 0, "state": {"terminated": report}}
        api.run(f"{name}-x").is_over = True
        owner = {"kind": "Job", "name": name, "uid": made["metadata"]["uid"], "controller": True}
        labels = {**body["spec"]["template"]["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
        api.put(
            f"{PODS}/{name}-x",
            metadata={**body["spec"]["template"]["metadata"], "labels": labels, "ownerReferences": [owner]},
            spec=body["spec"]["template"]["spec"],
            status={"phase": "Succeeded", "containerStatuses": [ended]},
        )
    handler.send_json(201, made)
    return True


def create_named_pod(handler: Handler) -> bool:
    """Create a pod with a generated name, unless the request is a dry run."""
    body = handler.api.bodies[-1]
    if handler.query.get("dryRun") != "All":
        handler.api.put(f"{PODS}/{body['metadata']['generateName']}x", **body)
    handler.send_json(201, body)
    return True


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        server.put("/version", gitVersion="v1.34.4")
        server.fail(f"POST {JOBS}", finish_at_once, times=9)
        server.fail(f"POST {PODS}", create_named_pod, times=9)
        server.fail("accessreviews", answer(403, 'User "me" cannot create resource "reviews"'), times=99)
        yield server


def examine(*pairs: str, **changes: Any) -> dict[str, Finding]:
    api = KubernetesApi.connect(retry_seconds=0.2)
    tests = {"account": "runner", "tests_dataset": True, "tests_model": True, **changes}
    examination = Examination(api=api, parameters=planned(*pairs), say=lambda sentence: None, **tests)
    return {each.check: each for each in examination.findings()}


def posted(server: ApiServer, path: str) -> list[Manifest]:
    requests = zip(server.requests, server.bodies, strict=True)
    return [body for request, body in requests if request.partition("?")[0] == f"POST {path}"]


def jobs_by_stage(server: ApiServer) -> dict[str, Manifest]:
    jobs = posted(server, JOBS)
    return {each["metadata"].get("annotations", {}).get("kubetrain/stage", "keeper"): each for each in jobs}


def test_every_probe_is_judged_and_everything_is_deleted(server: ApiServer) -> None:
    found = examine()
    checks = ("step image", "S3 model", "components image", "write", "S3 dataset", "trainer image", "read-only mount")
    assert [found[check].status for check in checks] == [Status.OK] * 7, found
    assert [path for path in server.objects if not path.startswith(PODS)] == ["/version"]


def test_what_doctor_leaves_when_it_is_killed_is_deleted_after_an_hour(server: ApiServer) -> None:
    examine()
    jobs = jobs_by_stage(server)
    assert list(jobs) == ["step", "keeper", "write", "read"]
    assert {each["spec"]["ttlSecondsAfterFinished"] for each in jobs.values()} == {3600}
    assert (jobs["keeper"]["spec"]["parallelism"], jobs["keeper"]["spec"]["completions"]) == (0, 0)
    claims = posted(server, CLAIMS)
    assert len(claims) == 3, "two PVCs, and a clone of the staging PVC"
    for each in claims:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Job", jobs["keeper"]["metadata"]["name"])


def test_data_on_a_pvc_is_looked_at_where_it_is(server: ApiServer) -> None:
    found = examine("data.uri=pvc://photos/flowers", tests_dataset=False)
    assert (found["data PVC"].status, found["data PVC"].evidence) == (
        Status.MISSING,
        "in tests, PVC photos does not exist",
    )
    assert not found.keys() & {"staging PVC", "exposure", "S3 dataset"}
    assert len(posted(server, CLAIMS)) == 1, "only the output has a PVC of its own"
    server.fail(f"POST {PODS}", create_named_pod, times=99)
    for mode, status in (("ReadWriteOnce", Status.WARNING), ("ReadOnlyMany", Status.OK)):
        server.put(f"{CLAIMS}/photos", spec={"accessModes": [mode]}, status={"phase": "Bound"})
        assert examine("data.uri=pvc://photos/flowers", with_pods=False)["data PVC"].status is status


def test_the_pvcs_of_probes_are_like_those_that_exist(server: ApiServer) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {}}
    server.put(f"{CLAIMS}/kubetrain-output", spec=spec, status={"phase": "Bound"})
    examine()
    (output,) = (each for each in posted(server, CLAIMS) if "doctor-output-" in each["metadata"]["name"])
    assert (output["spec"]["accessModes"], output["spec"]["storageClassName"]) == (["ReadWriteOnce"], "fast")


def test_a_step_has_the_account_and_the_ca_of_the_run_and_nothing_of_its_placement(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "PULL_SECRETS", ("registry",))
    env = [{"name": "CABUNDLE_CONFIGMAP_NAME", "value": "ca"}, {"name": "CABUNDLE_KEY_NAME", "value": "root.pem"}]
    pod = {"containers": [{"name": "api", "env": env}]}
    server.put("/apis/apps/v1/namespaces/kubeflow/deployments/ml-pipeline", spec={"template": {"spec": pod}})
    found = examine(
        'pods.pod={"spec": {"serviceAccountName": "trainer", "imagePullSecrets": [{"name": "other"}]}}',
        'pods.env={"AWS_CA_BUNDLE": "/x"}',
        "data.secret=mine",
    )
    specs = {stage: job["spec"]["template"]["spec"] for stage, job in jobs_by_stage(server).items()}
    step, (container,) = specs["step"], specs["step"]["containers"]
    assert (step["serviceAccountName"], step["imagePullSecrets"]) == ("runner", [{"name": "registry"}])
    assert specs["write"]["serviceAccountName"] == "trainer"
    assert (found["secret registry"].status, found["secret other"].status) == (Status.MISSING, Status.MISSING)
    assert container["image"] == images.COMPONENTS
    keys = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each}
    assert keys["AWS_SECRET_ACCESS_KEY"] == {"name": "mine", "key": "AWS_SECRET_ACCESS_KEY", "optional": True}
    assert "AWS_CA_BUNDLE" not in {each["name"] for each in container["env"]}
    (volume,) = (each for each in step["volumes"] if each["name"] == "custom-ca")
    assert volume["configMap"] == {"name": "ca", "items": [{"key": "root.pem", "path": "ca.crt"}]}
    assert {"name": "custom-ca", "mountPath": "/kfp/certs"} in container["volumeMounts"]


def test_the_tests_of_s3_run_in_the_pods_that_use_it(server: ApiServer) -> None:
    examine()
    tests = {
        stage: json.loads(each["spec"]["template"]["spec"]["containers"][0]["command"][-1])
        for stage, each in jobs_by_stage(server).items()
    }
    assert list(tests["step"]) == ["model"]
    assert list(tests["write"]) == ["write", "dataset"]
    assert list(tests["read"]) == ["read_only"]


def test_the_store_of_the_output_is_tried_by_a_pod_with_the_credentials_of_the_sidecar(server: ApiServer) -> None:
    found = examine("storage.output=s3://b/out", "data.uri=", 'train.entry={"script": "train.py"}', tests_dataset=False)
    assert found["S3 output"].status is Status.OK, found
    assert not found.keys() & {"output PVC", "write", "read-only mount", "pods"}
    container = jobs_by_stage(server)["write"]["spec"]["template"]["spec"]["containers"][0]
    assert json.loads(container["command"][-1])["output"] == ["s3://b/out", ""]
    assert container["envFrom"][0]["secretRef"]["name"] == "kubetrain-s3"


def test_what_fails_is_deleted_too(server: ApiServer) -> None:
    server.fail(f"POST {CLAIMS}", answer(403, 'User "me" cannot create resource "persistentvolumeclaims"'), times=9)
    found = examine()
    assert found["write"].status is Status.UNKNOWN
    assert found["S3 model"].status is Status.OK
    assert [path for path in server.objects if not path.startswith(PODS)] == ["/version"]


def test_without_pods_nothing_is_created(server: ApiServer) -> None:
    found = examine(with_pods=False)
    assert found["pods"].status is Status.SKIPPED
    assert posted(server, JOBS) == posted(server, CLAIMS) == []


def test_admission_is_asked_without_creating_a_pod(server: ApiServer) -> None:
    found = examine(with_pods=False)
    assert found["admission: launch_training pod"].status is Status.OK
    assert found["admission: launch step"].status is Status.WARNING
    assert len(posted(server, PODS)) == 4
    assert list(server.objects) == ["/version"]
