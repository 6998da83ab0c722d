"""The output of a training process: metrics, progress lines and the termination message."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kubetrain_trainer import termination
from kubetrain_trainer.reporting.metrics_log import MetricsLog, read_metrics
from kubetrain_trainer.reporting.progress_line import format_progress, parse_progress
from kubetrain_trainer.termination import (
    clear_termination_message,
    parse_termination_message,
    report_failure,
    report_result,
)


def test_progress_lines_read_back() -> None:
    line = format_progress(step="3/10", loss=0.12345, samples_per_second=4127.2)
    assert line == "[kubetrain] step=3/10 loss=0.1235 samples_per_second=4127"
    assert parse_progress(line) == {"step": "3/10", "loss": 0.1235, "samples_per_second": 4127.0}


@pytest.mark.parametrize(
    "line", ["", "progressing nicely", "progress stage=1/5", "epoch=3", "[kubetrain] by hand", "  [kubetrain] step=1"]
)
def test_other_lines_are_not_progress(line: str) -> None:
    assert parse_progress(line) is None


def test_a_resumed_run_drops_the_rows_after_its_checkpoint_and_damaged_ones(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsLog(path, resumed_step=0)
    for step in (1, 2, 3):
        first.append({"step": step, "loss": 1.0})
    with path.open("ab") as file:
        file.write(b'{"step": 4, "l\xbass": 1}\n{"ctep": 1}\n{"step": "1"}\n[]\n7\n\n')  # bits flipped
        file.write(b'{"step": 4, "lo')  # its writer was killed
    MetricsLog(path, resumed_step=2).append({"step": 3, "loss": 0.5})
    assert [(row["step"], row["loss"]) for row in read_metrics(path)] == [(1, 1.0), (2, 1.0), (3, 0.5)]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "termination-log"
    path.write_text("")
    monkeypatch.setenv(termination.LOG_VARIABLE, str(path))
    return path


def test_the_first_failure_of_a_pod_is_kept(file: Path) -> None:
    report_failure("rank 1 ran out of memory", curable=True)
    report_failure("connection reset by peer", curable=True)
    message = parse_termination_message(file.read_text())
    assert message == {"status": "failed", "error": "rank 1 ran out of memory", "curable": True}


def test_a_file_name_that_is_not_utf_8_hides_no_failure(file: Path) -> None:
    report_failure(f"{os.fsdecode(b'caf' + bytes([0xE9]))}.png is damaged", curable=False)
    message = parse_termination_message(file.read_text())
    assert message == {"status": "failed", "error": r"caf\udce9.png is damaged", "curable": False}
    assert str(message["error"]).encode()


def test_a_long_message_stays_valid_within_kubernetes_limit(file: Path) -> None:
    report_failure("é" * 5000, curable=False)
    assert len(file.read_bytes()) <= termination.MAX_BYTES
    assert parse_termination_message(file.read_text())["status"] == "failed"


def test_as_many_nodes_to_avoid_are_kept_as_a_message_has_room_for(file: Path) -> None:
    nodes = [f"node-{number}" for number in range(1000)]
    report_failure("é" * 5000, curable=False, avoid_nodes=nodes)
    kept = parse_termination_message(file.read_text())["avoid_nodes"]
    assert kept == nodes[: len(kept)]
    assert termination.MAX_BYTES - 20 < len(file.read_bytes()) <= termination.MAX_BYTES


def test_a_result_is_its_own_json(file: Path) -> None:
    report_result({"status": "completed", "step": 3, "source": "s3://größe"})
    report_result({"status": "completed", "step": 3})
    assert parse_termination_message(file.read_text()) == {"status": "completed", "step": 3}


def test_a_result_that_is_too_long_is_an_error(file: Path) -> None:
    with pytest.raises(ValueError, match="Kubernetes reads only 4096"):
        report_result({"status": "completed", "folders": ["x" * 10] * 1000})
    assert file.read_text() == ""


def test_a_process_that_fails_while_another_one_writes_waits_for_its_message(file: Path) -> None:
    second = threading.Thread(target=report_failure, args=("connection reset by peer",), kwargs={"curable": True})
    with file.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second.start()
        second.join(0.1)
        first.write("the first message")
    second.join()
    assert file.read_text() == "the first message"


def test_outside_a_pod_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(termination.LOG_VARIABLE, str(tmp_path / "absent"))
    report_failure("ignored", curable=True)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("text", ["", "Segmentation fault", "[1]", '"x"'])
def test_messages_of_other_programs_are_ignored(text: str) -> None:
    assert parse_termination_message(text) == {}


def test_a_restarted_process_writes_its_own_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "termination"
    path.touch()
    monkeypatch.setenv(termination.LOG_VARIABLE, str(path))
    report_failure("lost the other process", curable=True)
    monkeypatch.setenv("LOCAL_RANK", "1")
    clear_termination_message()
    assert path.read_text(), "another process may start later than the first one fails"
    monkeypatch.setenv("LOCAL_RANK", "0")
    clear_termination_message()
    report_failure("the loss is not a number", curable=False)
    assert parse_termination_message(path.read_text())["error"] == "the loss is not a number"


ENDING = """
import multiprocessing, sys, time
from kubetrain_trainer.termination import call_before_end, end_process

child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
child.start()
call_before_end(lambda exit_code: print(f"ends with {exit_code}", file=sys.stderr))
print("printed without a flush")
end_process(3)
"""


def test_a_process_that_ends_at_once_loses_nothing_that_it_printed_and_leaves_no_process() -> None:
    """Its pipes are closed only when its child has ended too."""
    program, buffered = [sys.executable, "-c", ENDING], {"PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(program, env=buffered, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "printed without a flush\n", "ends with 3\n")
