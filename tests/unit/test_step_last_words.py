"""An error of a step outside any stage, in the components image."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kubetrain_trainer import termination

IMAGE = Path(__file__).parents[2] / "components" / "image"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "from kubetrain_components.run.site import that_site",
            "ImportError: cannot import name 'that_site' from 'kubetrain_components.run.site' (.*): the pipeline was "
            "compiled with a different version of kubetrain than this step's image: recompile it",
        ),
        ("import kubetrain_components.gone", "ModuleNotFoundError: .*'kubetrain_components.gone': the pipeline .*"),
        ("import gone", "ModuleNotFoundError: No module named 'gone'$"),
        ("raise RuntimeError('by KFP itself')", "RuntimeError: by KFP itself$"),
        ("raise SystemExit(3)", "$"),
    ],
)
def test_the_cause_is_the_termination_message_and_the_last_line(tmp_path: Path, program: str, words: str) -> None:
    said = tmp_path / "termination-log"
    said.touch()
    environment = os.environ | {"PYTHONPATH": str(IMAGE), termination.LOG_VARIABLE: str(said)}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == (3 if "SystemExit" in program else 1)
    assert ("Traceback" in ended.stderr) == ("SystemExit" not in program)
    assert re.match(words, said.read_text())
    assert ended.stderr == "" or ended.stderr.endswith(f"\nerror: {said.read_text()}\n")
