"""A running step: the progress that it reports, and the end of its log if it fails."""

import json
import os
from pathlib import Path

import pytest

from kubetrain_components.jobs.job_state import LogLine
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


def test_the_progress_that_completes_a_part_is_always_reported(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    with running_stage("train", "run", EventLog(events)) as stage:
        for step in (298, 299, 300):
            stage.on_line(LogLine("worker-0", f"[kubetrain] step={step}/300"))
    reported = [each["progress"]["step"] for each in map(json.loads, events.open()) if each["event"] == "progress"]
    assert (reported[0], reported[-1]) == ("298/300", "300/300")
