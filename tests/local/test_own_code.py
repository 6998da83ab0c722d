"""Scripts and commands of your own in place of the trainer's loop, as real processes."""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.stop_signal import MARKS_VARIABLE
from kubetrain_trainer.termination import LOG_VARIABLE
from support.process_groups import start_python

BARE = """
import json, os, sys
from pathlib import Path

output = Path(os.environ["KUBETRAIN_OUTPUT"])
print("data", os.environ["KUBETRAIN_DATA"], "run", os.environ["KUBETRAIN_RUN_ID"], "arguments", *sys.argv[1:])
print("settings", json.loads(os.environ["KUBETRAIN_CONFIG"])["model_args"])
(output / "export" / "variables").mkdir()
(output / "export" / "variables" / "weights").write_text("1 2 3")
(output / "metrics.json").write_text('{"accuracy": 0.75}')
"""
IN_SESSION = """
import os, time
from kubetrain_trainer import session

checkpoint = session.resume()
total = int((checkpoint.path / "total").read_text()) if checkpoint else 0
for step in range(checkpoint.step if checkpoint else 0, 40):
    total += step
    time.sleep(0.05 if os.path.exists("slow") else 0)
    session.log(step + 1, loss=1 / total if total else 1)
    if session.should_stop() or (step + 1) % 10 == 0:
        session.save(step + 1, lambda folder: (folder / "total").write_text(str(total)))
session.finish(lambda folder: (folder / "model").write_text(str(total)), {"total": total})
"""

ASKED_TO_STOP = """
import os, signal
from kubetrain_trainer import session
session.should_stop()
os.kill(os.getpid(), signal.SIGTERM)
assert session.should_stop()
"""
SHOWN = """
import sys, time
from urllib.error import URLError
from urllib.request import urlopen
from kubetrain_trainer import session

def save(step):
    session.save(step, lambda folder: (folder / "state").write_text(""), {"accuracy": 0.75})

def page():
    while True:
        try:
            return urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read().decode()
        except URLError:  # the server has only begun to start
            time.sleep(0.05)

save(1)
assert "kubetrain_checkpoint_stall_seconds_count 1" in page()
session.log(2, loss=0.5, skipped_steps=3)
session.log(2, own_metric=0.25)
save(2)
print(page())
session.finish(lambda folder: (folder / "model").write_text(""), {"accuracy": 0.75})
"""


def started(folder: Path, entry: dict[str, Any], *flags: str) -> "subprocess.Popen[str]":
    (folder / "message").touch()
    return start_python(
        *("-u", "-m", "kubetrain_trainer.pytorch_ddp.own_code", "--data-dir", "/data", "--output-dir", folder / "run"),
        *("--metrics-port", "0", "--entry", json.dumps(entry), *flags),
        cwd=folder,
        **{LOG_VARIABLE: str(folder / "message")},
    )


def run(folder: Path, entry: dict[str, Any], *flags: str) -> tuple[int, str, dict[str, Any]]:
    """Return the exit code, the log and the termination message."""
    (folder / "message").write_text("")
    process = started(folder, entry, *flags)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output, json.loads((folder / "message").read_text() or "{}")


def test_the_page_of_metrics_shows_what_a_script_logs_and_saves(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOWN)
    port = str(free_ports(1)[0])
    code, output, _ = run(tmp_path, {"script": "train.py", "args": [port]}, "--metrics-port", port)
    assert code == 0, output
    shown = output.splitlines()
    assert {"kubetrain_loss 0.5", 'kubetrain_logged{metric="own_metric"} 0.25'} <= {*shown}
    assert "kubetrain_skipped_steps_total 3.0" in shown and 'metric="skipped_steps"' not in output
    assert {"kubetrain_checkpoint_stall_seconds_count 2", 'kubetrain_validation{metric="accuracy"} 0.75'} <= {*shown}


def test_a_script_learns_by_variables_and_its_export_is_its_success(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BARE)
    settings = ("--model-args", '{"layers": 2}', "--epochs", "6", "--data", "synthetic")
    code, output, message = run(tmp_path, {"script": "train.py", "args": ["--epochs", 3]}, *settings)
    assert code == 0, output
    assert "data /data run run arguments --epochs 3\nsettings {'layers': 2}\n" in output
    assert "train.epochs=6: without effect, unless the entry reads KUBETRAIN_CONFIG" in output.splitlines()
    result = TrainingOutput(tmp_path / "run")
    assert message == result.read_result()
    assert message["step"] == 0, "none was logged"
    assert result.verify_result(message).manifest["world_size"] == 1
    assert [file["name"] for file in result.read_export()["files"]] == ["variables/weights"]
    assert result.read_evaluation()["metrics"] == {"accuracy": 0.75}


def test_the_variables_that_arguments_name_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    (tmp_path / "train.py").write_text(BARE)
    given = [
        "$KUBETRAIN_DATA/a",
        "--out=${KUBETRAIN_OUTPUT}/export",
        "$KUBETRAIN_OUTPUTS",
        "${KUBETRAIN_DATA:-b}",
        "$HOME",
        "$(TOKEN)",
        "$$(TOKEN)",
        "$(date)",
    ]
    code, output, _ = run(tmp_path, {"script": "train.py", "args": given})
    assert code == 0, output
    filled = f"arguments /data/a --out={tmp_path}/run/export $KUBETRAIN_OUTPUTS ${{KUBETRAIN_DATA:-b}} $HOME"
    assert f"{filled} secret $(TOKEN) $(date)\n" in output
    assert "secret" not in (tmp_path / "run" / "config.json").read_text()
    command = {"command": ["python", "-c", "import sys; sys.exit(sys.argv[1])", "in $KUBETRAIN_RUN_ID"]}
    assert run(tmp_path, command, "--output-dir", str(tmp_path / "second"))[1].endswith("in second\n")


def test_libraries_that_abort_when_python_destroys_them_do_not_fail_a_success(tmp_path: Path) -> None:
    library = """
import atexit, os, sys

class Library:
    def __del__(self, abort=os.abort):
        abort()

sys.library = Library()
sys.history = open("history.csv", "w")
sys.history.write("1,2,3")
atexit.register(print, "its exit handlers run")
"""
    (tmp_path / "train.py").write_text(BARE + library)
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert (code, output.splitlines()[-1]) == (0, "its exit handlers run"), output
    assert (tmp_path / "history.csv").read_text() == "1,2,3"
    (tmp_path / "broken.py").write_text(f"{library}sys.exit(3)")
    code, output, _ = run(tmp_path, {"script": "broken.py"}, "--output-dir", str(tmp_path / "second"))
    assert code != 0, output


def test_a_restart_after_the_end_only_reports_the_result(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BARE)
    _, _, first = run(tmp_path, {"script": "train.py"})
    code, output, again = run(tmp_path, {"script": "train.py"})
    assert (code, again) == (0, first)
    assert "arguments" not in output


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        ("", 1, "there is no model in .*/export: the script wrote no file; write the model into"),
        ("from kubetrain_trainer import session\nsession.finish(lambda folder: None)", 1, "there is no model in "),
        (f"{BARE}\n(output / 'metrics.json').write_text('[1]')", 1, "metrics.json must be a JSON object of numbers"),
        (f"{BARE}\n(output / 'export/manifest.json').write_text('{{}}')", 1, "manifest.json has a name that kubetrain"),
        (f"{BARE}\n(output / 'export/model.json').write_text('{{}}')", 1, "model.json has a name that kubetrain"),
        (f"{BARE}\n(output / 'export/latest').symlink_to('variables')", 1, "export/latest is a link"),
        ("raise ValueError('broken on purpose')", 1, "ValueError: broken on purpose"),
        ("import sys; sys.exit(3)", 3, ""),
        ("import os; os._exit(7)", 7, ""),
    ],
)
def test_nothing_else_is_a_success(tmp_path: Path, text: str, code: int, error: str) -> None:
    (tmp_path / "train.py").write_text(text)
    exit_code, output, message = run(tmp_path, {"script": "train.py"})
    assert exit_code == code, output
    assert re.search(error, message.get("error", ""))
    assert TrainingOutput(tmp_path / "run").read_result() is None


@pytest.mark.parametrize("parser", ["argparse.ArgumentParser", "Parser"])
def test_arguments_that_a_script_refuses_are_told_and_cost_no_restart(tmp_path: Path, parser: str) -> None:
    ends = "class Parser(argparse.ArgumentParser):\n    def error(self, message):\n        self.exit(2, message)\n"
    (tmp_path / "train.py").write_text(f"import argparse\n{ends}{parser}().parse_args()")
    code, _, message = run(tmp_path, {"script": "train.py", "args": ["fit"]})
    assert (code, message["error"][:29], message["curable"]) == (2, "unrecognized arguments: fit (", False)


def test_a_model_of_an_attempt_that_was_killed_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"import sys\nif __import__('os').path.exists('again'): sys.exit()\n{BARE}\nos._exit(9)"
    )
    assert run(tmp_path, {"script": "train.py"})[0] == 9
    (tmp_path / "again").touch()
    code, output, message = run(tmp_path, {"script": "train.py"})
    assert code == 1, output
    assert message["error"].startswith("there is no model in ")


def test_later_steps_can_read_what_a_script_of_strict_rights_writes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import os\nos.umask(0o077)\n{BARE}")
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert code == 0, output
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644) or path.parent.name == "run", path


def test_messages_of_the_scripts_own_logging_are_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"import logging\nlogging.basicConfig(level=10, format='mine: %(message)s')\nlogging.debug('here')\n{BARE}"
    )
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert "mine: here" in output
    assert code == 0


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"script": "train.py"}, "train.entry: there is no script 'train.py' in "),
        ({"command": ["a-trainer"]}, "train.entry: there is no program 'a-trainer' where the training runs"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, entry: dict[str, Any], error: str) -> None:
    code, _, message = run(tmp_path, entry)
    assert code == 1
    assert message["error"].startswith(error)


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("; exit 5", 5), ("; kill -9 $$", 137)])
def test_a_command_ends_with_its_own_exit_code(tmp_path: Path, ending: str, code: int) -> None:
    command = f'echo 1 > "$KUBETRAIN_OUTPUT/export/weights"{ending}'
    exit_code, output, message = run(tmp_path, {"command": ["sh", "-c", command]})
    assert exit_code == code, output
    assert message.get("status") == (None if code else "completed")


def test_a_command_gets_the_sigterm_of_its_pod(tmp_path: Path) -> None:
    process = started(
        tmp_path, {"command": ["python", "-c", "import time; print('begun', flush=True); time.sleep(60)"]}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143


def test_a_command_that_a_sigterm_ends_early_is_no_success(tmp_path: Path) -> None:
    program = (
        "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); print('begun', flush=True); signal.pause()"
    )
    process = started(tmp_path, {"command": ["python", "-c", program]})
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143


def test_a_script_that_resumes_by_itself_keeps_the_curve(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nfrom kubetrain_trainer import session\n"
        "begin = 3 if os.path.exists('begun') else 0\nopen('begun', 'w')\n"
        "for step in range(begin, begin + 4):\n    session.log(step + 1, loss=1.0)\n"
        "assert begin, 'lost'\nsession.finish(lambda folder: (folder / 'model').touch())\n"
    )
    assert run(tmp_path, {"script": "train.py"})[0] == 1
    assert run(tmp_path, {"script": "train.py"})[0] == 0
    assert [row["step"] for row in read_metrics(TrainingOutput(tmp_path / "run").metrics)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("end", ["session.finish(write)", "write(output / 'export')"])
def test_a_model_without_checkpoints_has_the_steps_that_were_logged(end: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nfrom pathlib import Path\nfrom kubetrain_trainer import session\n"
        "output = Path(os.environ['KUBETRAIN_OUTPUT'])\n"
        "for step in (1, 2, 3):\n    session.log(step, loss=1.0)\n"
        "def write(folder):\n    folder.mkdir(exist_ok=True)\n    (folder / 'model').touch()\n"
        f"{end}\n"
    )
    code, output, result = run(tmp_path, {"script": "train.py"})
    assert code == 0, output
    assert result["step"] == 3


def test_a_session_that_was_stopped_does_not_finish(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ASKED_TO_STOP + "session.finish(lambda folder: (folder / 'model').touch())\n")
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert code == 143
    assert "stopped before the end without session.save()" in output
    assert TrainingOutput(tmp_path / "run").read_result() is None


def test_the_save_of_a_session_that_has_to_stop_begins_no_report(tmp_path: Path) -> None:
    (tmp_path / "marks").mkdir()
    (tmp_path / "train.py").write_text(
        f"{ASKED_TO_STOP}os.environ['{MARKS_VARIABLE}'] = 'marks'\n"
        "session.save(1, lambda folder: (folder / 'state').touch(), {'accuracy': 0.5})\n"
    )
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert code == 143, output
    assert [saved.step for saved in complete_checkpoints(TrainingOutput(tmp_path / "run").checkpoints)] == [1]
    assert not TrainingOutput(tmp_path / "run").tensorboard.exists()
    assert any((tmp_path / "marks").iterdir()), "its launcher waits for it even while another process saves"


def test_a_sigterm_after_the_end_of_a_session_ends_the_script(tmp_path: Path) -> None:
    finished = "session.should_stop()\nsession.finish(lambda folder: (folder / 'model').touch())\n"
    (tmp_path / "train.py").write_text(
        "import os, signal\nfrom kubetrain_trainer import session\n"
        f"{finished}os.kill(os.getpid(), signal.SIGTERM)\nprint('still runs')\n"
    )
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert (code, "still runs" in output) == (143, False)


def test_metrics_of_a_session_replace_those_of_the_same_name_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"{BARE}\nfrom kubetrain_trainer import session\n"
        "session.finish(lambda folder: (folder / 'model').touch(), {'accuracy': 0.5})\n"
    )
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert code == 0, output
    assert TrainingOutput(tmp_path / "run").read_evaluation()["metrics"] == {"accuracy": 0.5}


def test_the_checkpoint_that_an_attempt_saved_itself_proves_its_end(tmp_path: Path) -> None:
    """Those of an attempt that it did not resume are of later steps."""
    (tmp_path / "train.py").write_text(
        "import os\nfrom kubetrain_trainer import session\n"
        "first = not os.path.exists('begun')\nopen('begun', 'w').close()\n"
        "for step in (70, 80) if first else (10, 20):\n"
        "    session.save(step, lambda folder: (folder / 'state').write_text(str(first)))\n"
        "assert not first, 'lost'\nsession.finish(lambda folder: (folder / 'model').touch())\n"
    )
    assert run(tmp_path, {"script": "train.py"})[0] == 1
    code, _, result = run(tmp_path, {"script": "train.py"})
    assert (code, result["step"], result["checkpoint"]) == (0, 20, "step-00000020")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("session.log(numpy.int64(1), loss=numpy.float32(1))", ""),
        ("session.save(numpy.array(1), write)", ""),
        ("session.log(1.5, loss=1)", "the step must be a whole number from 0, not 1.5"),
        ("session.save(numpy.ones(2), write)", "the step must be a whole number from 0, not array([1., 1.])"),
        ("session.save(-1, write)", "the step must be a whole number from 0, not -1"),
        ("session.log(1, loss=None)", "loss must be a single number, not None"),
        ("session.finish(write, {'accuracy': numpy.ones(2)})", "accuracy must be a single number, not array([1., 1.])"),
    ],
)
def test_steps_and_numbers_may_be_those_of_libraries(tmp_path: Path, call: str, error: str) -> None:
    write = "write = lambda folder: (folder / 'model').touch()"
    (tmp_path / "train.py").write_text(
        f"import numpy\nfrom kubetrain_trainer import session\n{write}\n{call}\nsession.finish(write)\n"
    )
    code, _, message = run(tmp_path, {"script": "train.py"})
    assert (code, message.get("error", "")) == (1 if error else 0, error)


FORKING = """
import multiprocessing, time
from kubetrain_trainer import session

session.should_stop()
context = multiprocessing.get_context("fork")
begun = context.Event()
child = context.Process(target=lambda: (begun.set(), time.sleep(60)))
child.start()
begun.wait()
child.terminate()
child.join(10)
print("ended with", child.exitcode)
session.finish(lambda folder: (folder / "model").touch())
"""


def test_processes_that_a_script_forks_end_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORKING)
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert code == 0, output
    assert "ended with -15" in output


def test_a_training_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    """The end of a training without checkpoints is proven by one without files, from which nothing can resume."""
    (tmp_path / "train.py").write_text(
        "import os\nfrom kubetrain_trainer import session\n"
        "print('resumes' if session.resume() else 'begins')\n"
        "session.finish(lambda folder: (folder / 'model').touch() if os.path.exists('again') else os._exit(9))\n"
    )
    assert run(tmp_path, {"script": "train.py"})[0] == 9
    (tmp_path / "again").touch()
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert code == 0, output
    assert "begins" in output


def test_a_run_resumes_from_another_runs_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_SESSION)
    assert run(tmp_path, {"script": "train.py"})[0] == 0
    (tmp_path / "train.py").write_text(f"{BARE}\nprint('from', os.environ['KUBETRAIN_RESUME_FROM'])")
    flags = ("--output-dir", str(tmp_path / "second"), "--resume-from")
    code, output, _ = run(tmp_path, {"script": "train.py"}, *flags, "run")
    assert code == 0, output
    assert f"from {tmp_path}/run/checkpoints/step-00000040\n" in output
    _, output, _ = run(
        tmp_path, {"script": "train.py"}, "--output-dir", str(tmp_path / "third"), "--resume-from", "none"
    )
    assert "train.resume_from: there is no complete checkpoint in " in output


def test_a_run_that_resumes_from_another_and_only_finishes_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_SESSION)
    assert run(tmp_path, {"script": "train.py"})[0] == 0
    flags = ("--output-dir", str(tmp_path / "second"), "--resume-from", "run")
    code, output, message = run(tmp_path, {"script": "train.py"}, *flags)
    assert code == 0, output
    assert f"resumes from {tmp_path}/run/checkpoints/step-00000040\n" in output
    second = TrainingOutput(tmp_path / "second")
    assert message == second.read_result()
    assert second.verify_result(message).path.parent == second.checkpoints


def test_a_checkpoint_with_a_reserved_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from kubetrain_trainer import session\nsession.save(1, lambda folder: (folder / 'manifest.json').touch())\n"
    )
    _, _, message = run(tmp_path, {"script": "train.py"})
    assert "manifest.json has a name that kubetrain uses" in message["error"]


def test_a_session_saves_when_it_must_stop_and_resumes_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_SESSION)
    (tmp_path / "slow").touch()
    process = started(tmp_path, {"script": "train.py"})
    assert process.stdout is not None
    for line in process.stdout:
        if "step=13" in line:
            process.send_signal(signal.SIGTERM)
            break
    rest, _ = process.communicate(timeout=20)
    assert process.returncode == 143, rest
    message = json.loads((tmp_path / "message").read_text())
    assert message["status"] == "stopped"
    assert 13 <= message["step"] < 20
    (tmp_path / "slow").unlink()
    code, output, message = run(tmp_path, {"script": "train.py"})
    assert code == 0, output
    assert f"resumes from {tmp_path}/run/checkpoints/step-000000" in output
    result = TrainingOutput(tmp_path / "run")
    assert (result.export / "model").read_text() == str(sum(range(40)))
    assert [row["step"] for row in read_metrics(result.metrics)] == list(range(1, 41))
    assert result.read_evaluation()["metrics"] == {"total": sum(range(40))}
    assert [each.step for each in complete_checkpoints(result.checkpoints)] == [20, 30, 40]
    assert message["step"] == 40


def test_a_killed_script_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_SESSION)
    (tmp_path / "slow").touch()
    process = started(tmp_path, {"script": "train.py"})
    assert process.stdout is not None
    for line in process.stdout:
        if "step=13" in line:
            process.kill()
            break
    process.communicate()
    (tmp_path / "slow").unlink()
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / ".step-00000013.partial").mkdir()
    code, output, _ = run(tmp_path, {"script": "train.py"})
    assert code == 0, output
    assert "resumes from" in output
    assert "step=11 " in output
    assert "step=10 " not in output
    assert {path.name for path in checkpoints.iterdir()} == {f"step-000000{step}" for step in (20, 30, 40)}


def test_without_kubetrain_a_session_only_prints(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_SESSION)
    process = start_python("train.py", cwd=tmp_path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "this script runs without kubetrain's training: nothing is saved\n[kubetrain] step=1 loss=1" in output
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_an_evaluation_of_your_own_measures_the_model(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BARE)
    (tmp_path / "test.py").write_text(
        "import json, os\nfrom pathlib import Path\nfrom kubetrain_trainer import session\n"
        "session.log(1, loss=1)\n"
        "weights = Path(os.environ['KUBETRAIN_MODEL'], 'variables/weights').read_text().split()\n"
        "Path(os.environ['KUBETRAIN_OUTPUT'], 'metrics.json').write_text(json.dumps({'weights': len(weights)}))\n"
    )
    code, output, _ = run(tmp_path, {"script": "train.py", "evaluation": {"script": "test.py"}})
    assert code == 0, output
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 7}\n')
    program = (
        "-m",
        "kubetrain_trainer.own_code.own_evaluation",
        "--data-dir",
        "/data",
        "--output-dir",
        tmp_path / "run",
    )
    process = start_python(*program, cwd=tmp_path)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert TrainingOutput(tmp_path / "run").read_evaluation()["metrics"] == {"weights": 3}
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 7}\n', "the training's"
