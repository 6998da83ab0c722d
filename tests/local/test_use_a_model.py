"""The script of docs/published_models.md, with kubetrain's wheel and one framework installed, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kubetrain_trainer.settings.config import TrainConfig
from support.bare_environment import bare_environment
from support.published import evaluated, exported, published

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "published_models.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT], check=True)
    (built,) = folder.iterdir()
    return built


@pytest.mark.parametrize("framework", ["pytorch", pytest.param("tensorflow", marks=pytest.mark.thorough)])
def test_the_script_of_the_page_gives_the_answers_of_the_evaluation(
    framework: str, wheel: Path, digits: Path, tmp_path: Path
) -> None:
    arguments = exported(framework, tmp_path / "run", digits, TrainConfig(image_size=10, model_args={"width": 8}))
    accuracy = evaluated(framework, arguments)["metrics"]["accuracy"]
    assert 0.2 < accuracy < 1
    models = published(arguments, tmp_path / "models").parent
    python = bare_environment(tmp_path / "environment", framework, wheel)
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "use_model.py").write_text(script)

    def run(*command: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([python, *command], check=False, capture_output=True, text=True, cwd=tmp_path)

    for absent in ("boto3", "kfp", "click", {"pytorch": "tensorflow", "tensorflow": "torch"}[framework]):
        assert f"No module named '{absent}'" in run("-c", f"import {absent}").stderr
    done = run("use_model.py", models, digits / "test")
    assert done.returncode == 0, done.stderr
    *answers, last = done.stdout.splitlines()
    assert last == f"accuracy {accuracy:.4f}, in the evaluation {accuracy:.4f}"
    assert len(answers) == 270
    assert re.fullmatch(r".*/test/0/\d+\.png: \d \(\d+%\)", answers[0])
    without = run("-c", "import kubetrain; kubetrain.load_model('s3://b/m')")
    assert "which s3:// needs: install it with `pip install -e '.[components]'` in kubetrain's clone" in without.stderr
