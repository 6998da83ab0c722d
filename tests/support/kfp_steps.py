"""The steps of a compiled pipeline on the test cluster, in pods like those of Kubeflow Pipelines.

Inputs come from the form that `submit` would send, and from the outputs that executors of earlier steps wrote.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.run.request import Request, merged
from kubetrain_pipelines.definitions.compiled_file import CompiledFile
from kubetrain_pipelines.requests.planned_run import fill_form
from kubetrain_pipelines.requests.request_file import RequestFile
from support.cluster import COMPONENTS, ENDPOINT_IN_PODS, Bucket

COMPILED = Path(__file__).parents[2] / "compiled"
RUN_ID_PLACEHOLDER = "{{$.pipeline_job_uuid}}"
OUTPUT_FILE, OUTPUT_MARK = "/tmp/kfp_outputs/output_metadata.json", "== the executor's output"
WRAPPER = f'"$@"; code=$?; echo; echo "{OUTPUT_MARK}"; cat {OUTPUT_FILE}; exit $code'
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class StepFailed(Exception):
    """A step failed, with this termination message."""


def asked(bucket: Bucket, **groups: Mapping[str, Any]) -> Request:
    """Return the request for a small run, in which these settings replace the usual ones."""
    usual = {
        "data": {"uri": bucket.uri("digits"), "endpoint": ENDPOINT_IN_PODS},
        "model": {"uri": bucket.uri("models")},
        "pods": {"cpu": "200m", "memory": "2Gi", "grace_seconds": 20},
        "storage": {"staging_size": "1Gi", "output_size": "1Gi"},
    }
    return merged(usual, groups)


@dataclass
class PipelineRun:
    api: KubernetesApi
    pipeline: str
    run_id: str
    request: Request
    account: str = "pipeline-runner"
    outputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Output parameters and artifacts of each task, as its executor wrote them."""
    logs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        path = COMPILED / f"{self.pipeline}.yaml"
        documents = list(yaml.safe_load_all(path.read_text()))
        self._spec, self._platform = documents[0], documents[1]["platforms"]["kubernetes"]["deploymentSpec"]
        self._form = fill_form(CompiledFile.read(path).parameters, RequestFile(request=self.request))

    def run(self, task: str, **task_config: Any) -> dict[str, Any]:
        """
        Raises:
            StepFailed: if the step failed.
        """
        component = self._spec["components"][self._task(task)["componentRef"]["name"]]
        pod = self._pod(task, component, self._executor_input(task, component, task_config))
        path = self.api.path("v1", "pods", pod["metadata"]["name"])
        self.api.create(self.api.path("v1", "pods"), pod)
        status = self._await_end(path)
        log = self._log(path)
        self.api.delete(path)
        self.logs[task], _, output = log.partition(OUTPUT_MARK)
        if status["phase"] != "Succeeded":
            raise StepFailed(status["containerStatuses"][0]["state"]["terminated"].get("message", "") or log)
        assert output, log
        self.outputs[task] = json.loads(output)
        return self.outputs[task]

    def _task(self, task: str) -> dict[str, Any]:
        found: dict[str, Any] = self._spec["root"]["dag"]["tasks"][task]
        return found

    def _executor_input(self, task: str, component: dict[str, Any], task_config: dict[str, Any]) -> dict[str, Any]:
        inputs = self._task(task).get("inputs", {})
        declared = component.get("outputDefinitions", {})
        values = {name: self._value(source) for name, source in inputs.get("parameters", {}).items()}
        for name, definition in component["inputDefinitions"].get("parameters", {}).items():
            if definition["parameterType"] == "TASK_CONFIG":
                values[name] = task_config
            elif name not in values and "defaultValue" in definition:
                values[name] = definition["defaultValue"]
        return {
            "inputs": {
                "parameterValues": values,
                "artifacts": {name: self._artifact(source) for name, source in inputs.get("artifacts", {}).items()},
            },
            "outputs": {
                "parameters": {name: {"outputFile": f"/tmp/kfp/{name}"} for name in declared.get("parameters", {})},
                "artifacts": {
                    name: {"artifacts": [{"name": name, "type": each["artifactType"], "uri": f"s3://runs/{name}"}]}
                    for name, each in declared.get("artifacts", {}).items()
                },
                "outputFile": OUTPUT_FILE,
            },
        }

    def _value(self, source: dict[str, Any]) -> Any:
        if "taskOutputParameter" in source:
            wanted = source["taskOutputParameter"]
            return self.outputs[wanted["producerTask"]]["parameterValues"][wanted["outputParameterKey"]]
        if "componentInputParameter" in source:
            name = source["componentInputParameter"]
            definition = self._spec["root"]["inputDefinitions"]["parameters"][name]
            return self._form.get(name, definition.get("defaultValue"))
        constant = source["runtimeValue"]["constant"]
        return self.run_id if constant == RUN_ID_PLACEHOLDER else constant

    def _artifact(self, source: dict[str, Any]) -> dict[str, Any]:
        wanted = source["taskOutputArtifact"]
        found: dict[str, Any] = self.outputs[wanted["producerTask"]]["artifacts"][wanted["outputArtifactKey"]]
        return found

    def _pod(self, task: str, component: dict[str, Any], executor_input: dict[str, Any]) -> dict[str, Any]:
        container = self._spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        settings = self._platform["executors"].get(component["executorLabel"], {})
        text = json.dumps(_as_go_writes_it(executor_input))
        args = [text if each == "{{$}}" else each for each in container["args"]]
        claims = [self._value(each["pvcNameParameter"]) for each in settings.get("pvcMount", [])]
        mounts = [
            {"name": f"claim-{index}", "mountPath": each["mountPath"]}
            for index, each in enumerate(settings.get("pvcMount", []))
        ]
        volumes = [
            {"name": f"claim-{index}", "persistentVolumeClaim": {"claimName": claim}}
            for index, claim in enumerate(claims)
        ]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{self.pipeline.replace('_', '-')}-{task}", **settings.get("podMetadata", {})},
            "spec": {
                "serviceAccountName": self.account,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": int(settings["activeDeadlineSeconds"]),
                "securityContext": settings["securityContext"],
                # The launcher's scratch folder, by the scheme of the artifacts' store.
                "volumes": [{"name": "scratch", "emptyDir": {}}, *volumes],
                "containers": [
                    {
                        "name": "main",
                        "image": COMPONENTS,
                        "command": ["sh", "-c", WRAPPER, "launcher", *container["command"], *args],
                        "env": [each for secret in settings.get("secretAsEnv", []) for each in self._variables(secret)],
                        "volumeMounts": [{"name": "scratch", "mountPath": "/s3"}, *mounts],
                        "securityContext": RESTRICTED,
                    }
                ],
            },
        }

    def _variables(self, secret: dict[str, Any]) -> list[dict[str, Any]]:
        name = self._value(secret["secretNameParameter"])
        return [
            {
                "name": each["envVar"],
                "valueFrom": {
                    "secretKeyRef": {"name": name, "key": each["secretKey"], "optional": secret.get("optional", False)}
                },
            }
            for each in secret["keyToEnv"]
        ]

    def _await_end(self, path: str, seconds: float = 400) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status: dict[str, Any] = (self.api.get(path) or {"status": {"phase": "Failed"}})["status"]
            if status["phase"] in ("Succeeded", "Failed"):
                return status
            time.sleep(0.3)
        raise AssertionError(f"{path} did not end in {seconds:g} s:\n{self._log(path)}")

    def _log(self, path: str) -> str:
        with self.api.stream(f"{path}/log", read_timeout=10) as stream:
            return b"".join(stream).decode()


def _as_go_writes_it(value: Any) -> Any:
    """Write 2.0 as 2, like the launcher, which has one type for numbers."""
    if isinstance(value, dict):
        return {key: _as_go_writes_it(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_go_writes_it(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
