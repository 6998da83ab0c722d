"""Why a run failed: from the messages of its pods, or from the logs of its steps."""

from typing import Any

import pytest

from kubetrain_pipelines.kubeflow.failure_causes import error_in, messages_in, step_of
from support.kfp_server import RECORDED

REFUSED_UPLOAD = (RECORDED / "kfp" / "log_of_refused_upload.txt").read_text()


def node(task: str, phase: str, message: str, started: int = 0) -> dict[str, Any]:
    name = f"train-x(0).root(0).{task}(0).executor(0)"
    return {
        "name": name,
        "type": "Pod",
        "phase": phase,
        "message": message,
        "startedAt": f"2026-11-22T04:00:{started:02}Z",
    }


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("train-x(0).root(0).sync-dataset(0).executor(0)", "train-x.root.sync-dataset"),
        ("train-x.root.sync-dataset.executor", "train-x.root.sync-dataset"),
        ("train-x(0).root(0).loop(0).item(1:1)(0).train(0).executor(2)", "train-x.root.loop.item(1:1).train"),
        ("train-x(0).root(0).sync-dataset-driver(0)", "train-x.root.sync-dataset-driver"),
    ],
)
def test_a_node_belongs_to_a_step(name: str, step: str) -> None:
    assert step_of(name) == step


def test_the_messages_are_those_of_the_last_attempts_that_say_more_than_an_exit_code() -> None:
    nodes = [
        node("sync-dataset", "Succeeded", ""),
        node("launch-training", "Failed", "main: Error (exit code 1): rank 1 ran out of memory", 2),
        node("launch-training", "Error", "pod deleted", 1),
        {**node("launch-training", "Failed", "child failed"), "type": "Retry"},
        node("evaluate-model", "Failed", "main: Error (exit code 3)", 3),
        node("promote-model", "Failed", "main: OOMKilled (exit code 137)", 4),
    ]
    assert messages_in([{"status": {"nodes": dict(enumerate(nodes))}}]) == {
        "train-x.root.launch-training": "rank 1 ran out of memory",
        "train-x.root.promote-model": "main: OOMKilled (exit code 137)",
    }


def test_a_recorded_error_of_the_launcher_is_shortened_to_what_failed_and_why() -> None:
    assert error_in(REFUSED_UPLOAD) == (
        'Kubeflow Pipelines: failed to upload output artifact "executor-logs" to remote storage URI … api error '
        'AuthorizationHeaderMalformed: The authorization header is malformed; the region "minio" is wrong; expecting '
        '"us-east-1"'
    )


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (
            "error: first\nerror: last\nI1125 x\nF1125 00:36:26.7      16 main.go:59] failed to execute component: a",
            "last",
        ),
        ("F1125 00:36:26.715948      16 main.go:59] failed to execute component: a: b\n", "Kubeflow Pipelines: a: b"),
        ("F1125 00:36:26.715948      16 main.go:59] failed to execute component: exit status 1\n", ""),
        ("[worker-0] error: of a pod\n", ""),
    ],
)
def test_the_error_of_the_step_itself_comes_first(log: str, error: str) -> None:
    assert error_in(log) == error
