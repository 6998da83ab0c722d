"""Jobs for the test cluster that run a few lines of Python in a plain image, and their launchers."""

import base64
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

from kubetrain_components import IMAGE_NAME
from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.access.connection import Material, User
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.placement import Placement
from support import jobs

CLUSTER = Path(__file__).parents[3] / "shared" / "cluster"
API_SERVER = Path(os.environ.get("CLUSTER_HOME", "/var/tmp/test-cluster"), "state", "kube-apiserver.pid")
COMPONENTS = os.environ.get("KUBETRAIN_COMPONENTS_IMAGE", f"{IMAGE_NAME}:{version('kubetrain')}")
"""Built by `make images`; the test cluster must have it."""
ENDPOINT_IN_PODS, ENDPOINT = "http://s3.storage.svc:9000", "http://127.0.0.1:9000"
ENDPOINT_FOR_ALL = "http://10.88.0.1:9000"
"""Reaches it from pods and from this machine."""
IMAGE = "docker.io/library/python:3.11-slim"
SMALL = {"image": IMAGE, "cpu": "50m", "memory": "64Mi", "shm_size": "16Mi", "grace_seconds": 1}
LEADS = {JobKind.TF_JOB: "Chief", JobKind.PYTORCH_JOB: "Master", JobKind.BATCH_JOB: "Transfer"}
FOREVER = "import time; print('up', flush=True); time.sleep(3600)"


def pods_job(
    *programs: str,
    run_id: str,
    kind: JobKind = JobKind.TF_JOB,
    policy: RestartPolicy = RestartPolicy.NEVER,
    backoff_limit: int = 3,
    **placement: Any,
) -> Job:
    """Return a job whose lead runs the first program, and whose only Worker, if any, the second."""
    commands = [("python", "-u", "-c", program) for program in programs]
    made = jobs.job(*commands, run_id=run_id, kind=kind, policy=policy, backoff_limit=backoff_limit)
    roles = [LEADS[kind], "Worker"]
    replicas = tuple(replace(each, role=role) for each, role in zip(made.replicas, roles, strict=False))
    return replace(made, replicas=replicas, placement=Placement(**{**SMALL, **placement}))


def real_nodes(api: KubernetesApi) -> list[str]:
    """Return the names of the nodes that run pods: kwok's are none."""
    nodes = [each["metadata"] for each in api.get("/api/v1/nodes")["items"]]
    return [node["name"] for node in nodes if "kwok.x-k8s.io/node" not in (node.get("annotations") or {})]


def await_that(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Bucket:
    """A context manager for a bucket on the cluster's S3 server, which is deleted on exit."""

    credentials: ClassVar = {"AWS_ACCESS_KEY_ID": "testkey", "AWS_SECRET_ACCESS_KEY": "testsecret"}

    def __init__(self, name: str) -> None:
        import boto3

        self.name = name
        key, secret = self.credentials.values()
        self._s3 = boto3.client(
            "s3", endpoint_url=ENDPOINT, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret
        )

    def __enter__(self) -> Self:
        self._s3.create_bucket(Bucket=self.name)
        return self

    def __exit__(self, *unused: object) -> None:
        while found := self._s3.list_objects_v2(Bucket=self.name).get("Contents"):
            for each in found:
                self._s3.delete_object(Bucket=self.name, Key=each["Key"])
        self._s3.delete_bucket(Bucket=self.name)

    def put(self, contents: Mapping[str, bytes]) -> None:
        for key, content in contents.items():
            self._s3.put_object(Bucket=self.name, Key=key, Body=content)

    def get(self, key: str) -> bytes:
        return bytes(self._s3.get_object(Bucket=self.name, Key=key)["Body"].read())

    def keys(self, prefix: str) -> list[str]:
        found = self._s3.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return [str(each["Key"]) for each in found]

    def uri(self, prefix: str) -> str:
        return f"s3://{self.name}/{prefix}"


def as_account(name: str, api: KubernetesApi) -> KubernetesApi:
    """Return a client that acts as a service account of this namespace."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = api.create(api.path("v1", "serviceaccounts", f"{name}/token"), request)["status"]["token"]
    user = User(token=Material(token.encode()))
    return KubernetesApi(replace(api.connection, user=user), api.namespace)


class Launched:
    """A launcher in a separate process, which a test can kill."""

    def __init__(self, namespace: str, job: Job) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, namespace, base64.b64encode(pickle.dumps(job))],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the code that the test runs
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def await_line(self, text: str) -> None:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if text in line:
                return
        raise AssertionError(f"no line contains {text!r}:\n{''.join(lines)}")

    def rest(self) -> str:
        return self.process.communicate(timeout=60)[0]


def stop_api_server(seconds: float) -> None:
    """Stop the API server for this long, then restart it."""
    os.kill(int(API_SERVER.read_text().split()[0]), signal.SIGKILL)
    time.sleep(seconds)
    subprocess.run([CLUSTER / "up"], check=True, capture_output=True)


def _print(line: LogLine) -> None:
    print(f"[{line.pod}] {line.text}", flush=True)


if __name__ == "__main__":
    asked, pickled = sys.argv[1:]
    with interrupted_by_sigterm(), KubernetesBackend.connect(asked) as launcher:
        run_job(pickle.loads(base64.b64decode(pickled)), launcher, _print)
