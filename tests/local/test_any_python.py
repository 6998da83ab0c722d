"""What runs a script of one's own works with the Python of any image, which has neither a framework nor kubetrain."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import kubetrain_trainer
from kubetrain_components.bring_code import copy_trainer

VERSIONS = Path.home() / ".pyenv/versions"
"""Where test machines have other Pythons."""
NEWEST_FIRST = sorted(VERSIONS.glob("3.*/bin/python"), key=lambda path: tuple(map(int, path.parts[-3].split("."))))
PYTHONS = {re.match(r"3\.\d+", path.parts[-3])[0]: path for path in NEWEST_FIRST}
USABLE = {name: path for name, path in PYTHONS.items() if int(name.partition(".")[2]) >= 8}
OURS = {f"{sys.version_info.major}.{sys.version_info.minor}": Path(sys.executable)}
ANY_PYTHON = pytest.mark.parametrize("python", (USABLE | OURS).values(), ids=(USABLE | OURS).keys())
OLDEST_AND_OURS = pytest.mark.parametrize(
    "python", [next(iter({**USABLE, **OURS}.values())), *OURS.values()], ids=["oldest", "ours"]
)
SCRIPT = """\
import os
from kubetrain_trainer import session
from kubetrain_trainer.settings.config import TrainConfig

checkpoint = session.resume()
done = checkpoint.step if checkpoint else 0
for step in range(done, 3):
    session.log(step + 1, loss=1 / (step + 1))
    session.save(step + 1, lambda folder: (folder / "state").write_text(str(step)))
    if step == 1 and not done:
        raise RuntimeError("the disk is full")
print("resumed at", done, "HOME" in os.environ, flush=True)
session.finish(lambda folder: (folder / "model").write_text("weights"), {"accuracy": 0.5})
"""
EVALUATION = """\
import os, pathlib
model = pathlib.Path(os.environ["KUBETRAIN_MODEL"], "model").read_text()
pathlib.Path(os.environ["KUBETRAIN_OUTPUT"], "metrics.json").write_text('{"letters": %d}' % len(model))
"""


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that an init container brings into a pod, after it was started twice."""
    folder = tmp_path_factory.mktemp("volume")
    for _ in range(2):
        command = [sys.executable, "-m", copy_trainer.__name__, "--to", str(folder)]
        subprocess.run(command, check=True)
    return folder / kubetrain_trainer.__name__


def run(
    python: Path, brought: Path, folder: Path, module: str, *arguments: str, **variables: str
) -> tuple[int, str, str]:
    """Return the exit code, the log and the termination message of a program in a bare environment."""
    message = folder / "message"
    message.write_text("")
    command = [str(python), str(brought), f"kubetrain_trainer.{module}", *arguments]
    env = {"PATH": "/usr/bin:/bin", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"KUBETRAIN_TERMINATION_LOG": str(message), **variables}
    options = {"cwd": folder, "env": env, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ended = subprocess.run(command, check=False, timeout=60, **options)
    return ended.returncode, ended.stdout, message.read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "test.py").write_text(EVALUATION)
    return tmp_path


PLACES = ("--data-dir", "data", "--output-dir", "output/r")
ENTRY = ("--entry", json.dumps({"script": "train.py", "evaluation": {"script": "test.py"}}))


@ANY_PYTHON
def test_a_script_fails_resumes_and_is_evaluated(python: Path, brought: Path, folder: Path) -> None:
    code, log, message = run(python, brought, folder, "pytorch_ddp.own_code", *PLACES, *ENTRY)
    assert code == 1, log
    assert json.loads(message)["error"] == "RuntimeError: the disk is full (train.py, line 11)", log

    code, log, message = run(python, brought, folder, "pytorch_ddp.own_code", *PLACES, *ENTRY)
    assert code == 0, log
    assert "resumed at 2 False" in log
    assert json.loads(message)["status"] == "completed"
    assert (folder / "output/r/export/model").read_text() == "weights"

    code, log, _ = run(python, brought, folder, "own_code.own_evaluation", *PLACES)
    assert code == 0, log
    assert json.loads((folder / "output/r/evaluation.json").read_text())["metrics"] == {"letters": 7}


@ANY_PYTHON
def test_what_an_image_lacks_is_a_sentence(python: Path, brought: Path, folder: Path) -> None:
    (folder / "train.py").write_text("import no_such_library\n")
    entry = ("--entry", json.dumps({"script": "train.py"}))
    said = {}
    for framework in ("pytorch", "tensorflow"):
        program = ("own_code.check_imports", "--framework", framework)
        said[framework] = json.loads(run(python, brought, folder, *program, *entry)[2])["seen"]["task"]
    assert "not installed where it would run: no_such_library" in said["tensorflow"]
    if python not in OURS.values():
        assert "there is no PyTorch where it would run" in said["pytorch"]


def test_it_is_small_and_has_no_bytecode_of_another_python(brought: Path) -> None:
    files = [path for path in brought.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_000_000
    assert {path.suffix for path in files} <= {".py", ".typed"}


@pytest.mark.parametrize("name", sorted(PYTHONS.keys() - USABLE.keys()))
def test_a_python_that_is_too_old_is_named(name: str, brought: Path, folder: Path) -> None:
    code, log, _ = run(PYTHONS[name], brought, folder, "own_code.check_imports")
    assert code == 1
    assert log == f"error: this image has Python {name}: choose one with 3.8 or newer\n"


@OLDEST_AND_OURS
def test_requirements_are_installed_once_from_a_folder_of_wheels(python: Path, brought: Path, folder: Path) -> None:
    for name, needs in (("tiny_lib", ("other_lib",)), ("other_lib", ())):
        write_wheel(folder, name, *needs)
    (folder / "requirements.txt").write_text("tiny_lib\npip\n")
    (folder / "train.py").write_text(
        "import os, tiny_lib, other_lib\nopen(os.environ['KUBETRAIN_OUTPUT'] + '/export/model', 'w').close()\n"
    )
    offline = {"PIP_NO_INDEX": "1"}
    wheels = {**offline, "PIP_FIND_LINKS": str(folder)}
    program = ("own_code.check_imports", "--framework", "tensorflow")
    asked = (*ENTRY, "--requirements", "requirements.txt")
    said = json.loads(run(python, brought, folder, *program, *asked, **offline)[2])["seen"]["task"]
    assert said.startswith("error: train.requirements: pip cannot install requirements.txt: ERROR: ")
    assert "tiny" in said
    said = json.loads(run(python, brought, folder, *program, *asked, **wheels)[2])["seen"]["task"]
    assert said == "'train.py' can start"

    logs = []
    for output in ("output/first", "output/second"):
        places = ("--data-dir", "data", "--output-dir", output)
        code, log, _ = run(python, brought, folder, "pytorch_ddp.own_code", *places, *asked, **wheels)
        assert code == 0, log
        logs.append(log)
    assert "requirements.txt: tiny_lib==1.0, other_lib==1.0" in logs[0].replace("-", "_")
    assert "requirements.txt:" not in logs[1]
    (installed,) = (folder / "output/.requirements").iterdir()
    assert {"tiny_lib.py", "other_lib.py"} <= {path.name for path in installed.iterdir()}


def write_wheel(folder: Path, name: str, *needs: str) -> None:
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {x}\n" for x in needs)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", described)
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")
