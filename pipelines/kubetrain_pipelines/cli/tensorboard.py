"""`kubetrain tensorboard`: show the curves of runs on this machine, or print the object that shows one on a cluster."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.manifest import Manifest
from kubetrain_components.manifest_text import as_yaml
from kubetrain_components.run.stages import TRAIN
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.run import find_run, spec_of
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.event_file import PREFIX


@dataclass(frozen=True, kw_only=True)
class TensorboardOptions(ConnectionOptions):
    target: str
    port: int
    pvc: str = ""


def show_curves(options: TensorboardOptions) -> None:
    if not options.pvc and Path(options.target).is_dir():
        start_tensorboard(Path(options.target), options.port)
    run_id, claim, namespace = _place(options)
    board = tensorboard_object(run_id, claim, namespace)
    print(as_yaml([board]), end="", flush=True)
    print(_next_commands(board["metadata"]["name"], namespace, options.port), file=sys.stderr)


def start_tensorboard(folder: Path, port: int) -> NoReturn:
    """Let TensorBoard take the place of this process.

    Raises:
        KubetrainError: if there is nothing to show, or no TensorBoard.
    """
    logs = folder / "output" if (folder / "output").is_dir() else folder  # a workspace also holds datasets
    if not any(logs.rglob(f"{PREFIX}*")):
        raise KubetrainError(f"{folder} has no TensorBoard files yet: name a workspace, or the output of a run")
    beside = Path(sys.executable).parent
    program = shutil.which("tensorboard", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if program is None:
        raise KubetrainError("TensorBoard is not installed: install it with `pip install tensorboard`")
    os.execv(program, [program, "--logdir", str(logs), "--port", str(port)])  # noqa: S606 - no shell is needed


def tensorboard_object(run_id: str, claim: str, namespace: str) -> Manifest:
    """Return the object for which Kubeflow's controller starts TensorBoard beside the PVC of the output."""
    folder = TrainingOutput(Path(run_id)).tensorboard
    name = JobIdentity(pipeline="tensorboard", stage="", run_id=run_id).name
    return {
        "apiVersion": "tensorboard.kubeflow.org/v1alpha1",
        "kind": "Tensorboard",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {"logspath": f"pvc://{claim}/{folder}"},
    }


def _place(options: TensorboardOptions) -> tuple[str, str, str]:
    """Return the ID of the run, the PVC of its output, and the namespace."""
    if options.pvc:
        return options.target, options.pvc, options.namespace
    if (connection := options.connection()) is None:
        raise InvalidSetting(
            f"'{options.target}' is not a folder: for a run on a cluster, pass --pvc with the PVC of its output, or "
            "--endpoint of Kubeflow Pipelines"
        )
    return _place_in_kubeflow(options.target, connection)


def _place_in_kubeflow(wanted: str, connection: Connection) -> tuple[str, str, str]:
    api = KfpApi(connection)
    run = find_run(api, wanted)
    return run["run_id"], _claim_of(run, spec_of(api, run)), connection.pods_namespace


def _claim_of(run: Message, spec: Message) -> str:
    """Return the PVC that the pipeline passes to the training: a parameter of the run, its default, or a constant."""
    root = spec.get("root", {})
    declared = root.get("inputDefinitions", {}).get("parameters", {})
    defaults = {name: each["defaultValue"] for name, each in declared.items() if "defaultValue" in each}
    values = defaults | run.get("runtime_config", {}).get("parameters", {})
    training = root.get("dag", {}).get("tasks", {}).get(TRAIN.task, {})
    passed = training.get("inputs", {}).get("parameters", {}).get("output_claim", {})
    given = passed.get("runtimeValue", {}).get("constant") or values.get(
        passed.get("componentInputParameter", "output_claim"), Storage.output_claim
    )
    return str(values.get("storage", {}).get("output_claim", given))


def _next_commands(name: str, namespace: str, port: int) -> str:
    kubectl = f"kubectl --namespace {namespace}" if namespace else "kubectl"
    return (
        "once the training has begun, create this with `kubectl apply -f -`, run "
        f"`{kubectl} port-forward service/{name} {port}:80`, and open http://localhost:{port}"
    )
