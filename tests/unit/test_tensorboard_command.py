"""`kubetrain tensorboard`: TensorBoard for folders of this machine, an object of Kubeflow for runs on a cluster."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.reporting.event_file import EventFile
from support.cli import SOON_SECONDS, interrupt, kubetrain, start
from support.kfp_runs import kfp_without_cluster
from support.kfp_server import KfpServer
from support.prometheus import wait_until


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with kfp_without_cluster() as server:
        yield server


def write_events(workspace: Path) -> None:
    run = workspace / "output" / "run-7"
    run.mkdir(parents=True)
    EventFile(run / "tensorboard", resumed_step=0).append({"step": 1, "loss": 0.5})


def ask(port: int, path: str) -> Any:
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/data/{path}", timeout=60) as response:
            return json.load(response)
    except OSError:
        return None  # it is starting


@pytest.mark.slow
def test_a_real_tensorboard_shows_the_curves_of_a_workspace(tmp_path: Path) -> None:
    write_events(tmp_path)
    port = free_ports(1)[0]
    board = start("tensorboard", tmp_path, "--port", str(port))
    try:
        wait_until(lambda: ask(port, "runs") == ["run-7/tensorboard"])
        points = ask(port, "plugin/scalars/scalars?run=run-7%2Ftensorboard&tag=loss")
        assert [point[1:] for point in points] == [[1, 0.5]]
    finally:
        interrupt(board)


def test_a_folder_without_events_and_a_machine_without_tensorboard(tmp_path: Path) -> None:
    empty = kubetrain("tensorboard", tmp_path)
    assert (empty.exit_code, "no TensorBoard files" in empty.output) == (1, True)
    assert empty.seconds < SOON_SECONDS


def test_tensorboard_that_is_missing_can_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubetrain_pipelines.cli import tensorboard

    write_events(tmp_path)
    monkeypatch.setattr(tensorboard.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tensorboard.KubetrainError, match="pip install tensorboard"):
        tensorboard.start_tensorboard(tmp_path, 6006)


def board_of(output: str) -> dict[str, Any]:
    """Return the object, below which the next commands are printed."""
    manifest, _, _ = output.partition("once the training")
    board: dict[str, Any] = yaml.safe_load(manifest)
    return board


@pytest.mark.parametrize(
    ("parameters", "claim"),
    [({}, "kubetrain-output"), ({"output_claim": "mine"}, "mine"), ({"storage": {"output_claim": "mine"}}, "mine")],
)
def test_a_run_in_kubeflow_pipelines(parameters: dict[str, Any], claim: str, server: KfpServer) -> None:
    run = server.add("runs", {"display_name": "nightly", "runtime_config": {"parameters": parameters}})
    done = kubetrain("tensorboard", "nightly", "--endpoint", server.endpoint, "--namespace", "team")
    assert done.exit_code == 0, done.output
    board = board_of(done.output)
    assert board["spec"] == {"logspath": f"pvc://{claim}/{run['run_id']}/tensorboard"}
    assert board["metadata"]["namespace"] == "team"
    assert f"kubectl --namespace team port-forward service/{board['metadata']['name']} 6006:80" in done.output


@pytest.mark.parametrize(
    ("passed", "parameters", "claim"),
    [
        ({"componentInputParameter": "output_claim"}, {}, "default"),
        ({"componentInputParameter": "output_claim"}, {"output_claim": "mine"}, "mine"),
        ({"componentInputParameter": "volume"}, {"volume": "mine"}, "mine"),
        ({"runtimeValue": {"constant": "fixed"}}, {}, "fixed"),
    ],
)
def test_the_pvc_is_the_one_that_the_pipeline_passes_to_the_training(
    passed: dict[str, Any], parameters: dict[str, str], claim: str, server: KfpServer
) -> None:
    tasks = {"launch-training": {"inputs": {"parameters": {"output_claim": passed}}}}
    declared = {"output_claim": {"parameterType": "STRING", "defaultValue": "default"}}
    root = {"dag": {"tasks": tasks}, "inputDefinitions": {"parameters": declared}}
    version = server.add("versions", {"pipeline_id": "p", "pipeline_spec": {"root": root}})
    reference = {"pipeline_id": "p", "pipeline_version_id": version["pipeline_version_id"]}
    run = {"display_name": "nightly", "runtime_config": {"parameters": parameters}}
    server.add("runs", {**run, "pipeline_version_reference": reference})
    done = kubetrain("tensorboard", "nightly", "--endpoint", server.endpoint)
    assert board_of(done.output)["spec"]["logspath"].startswith(f"pvc://{claim}/"), done.output


def test_a_run_of_a_pvc_needs_no_server(tmp_path: Path) -> None:
    environment = {"cwd": tmp_path, "KUBECONFIG": os.devnull}
    done = kubetrain("tensorboard", "Run_7", "--pvc", "out", "--port", "8080", **environment)
    assert done.exit_code == 0, done.output
    board = board_of(done.output)
    assert board["spec"] == {"logspath": "pvc://out/Run_7/tensorboard"}
    assert board["metadata"]["name"].islower()
    assert "8080:80" in done.output


def test_a_name_that_nothing_knows(tmp_path: Path) -> None:
    done = kubetrain("tensorboard", cwd=tmp_path)
    assert (done.exit_code, "'kubetrain-workspace' is not a folder" in done.output) == (2, True)
