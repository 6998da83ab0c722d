"""A step that fails: the end of its log."""

import os
from pathlib import Path

import pytest

from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.run.events import EventLog
from kubetrain_components.run.stage import running_stage
from kubetrain_trainer.errors import KubetrainError


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (JobFailed("it broke", ["a", "b"]), "last lines of the pod that failed:\na\nb\nerror: it broke\n"),
        (JobFailed("it broke"), "error: it broke\n"),
        (KubetrainError("no bucket"), "error: no bucket\n"),
    ],
)
def test_the_log_ends_with_the_cause_below_the_marked_tail_of_the_pod(
    error: KubetrainError, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), running_stage("train", "run", EventLog(Path(os.devnull))):
        raise error
    assert capsys.readouterr().out == end
