"""The package `kubetrain`: it is imported in no time, has types, and names an extra that is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

import kubetrain

ROOT = Path(__file__).parents[2]
FOLDERS = [str(ROOT / name) for name in ("pipelines", "components", "trainer")]
MAX_SECONDS = 0.05
IMPORT = """
import sys, time
before, started = set(sys.modules), time.process_time()
import kubetrain
print(time.process_time() - started, *{name.partition(".")[0] for name in set(sys.modules) - before})
"""
SNIPPET = """
import kubetrain

run: kubetrain.Run = kubetrain.submit("train-pytorch", code=".", pods={"gpus": 8}).wait(timeout=60)
reveal_type(run.metrics)
reveal_type(kubetrain.run(train={"epochs": 1}).report)
kubetrain.sbmit("train-pytorch")
kubetrain.find_run("nightly", endpont="http://localhost:8888")
"""


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_importing_it_takes_milliseconds_and_only_the_standard_library() -> None:
    seconds, modules = [], set[str]()
    for _ in range(3):
        measured, *names = python("-c", IMPORT).split()
        seconds.append(float(measured))
        modules.update(names)
    assert modules - set(sys.stdlib_module_names) == {"kubetrain", "kubetrain_pipelines", "kubetrain_trainer"}
    assert min(seconds) < MAX_SECONDS


def test_every_name_is_there_and_no_module_replaces_one() -> None:
    for name in kubetrain.__all__:
        assert getattr(kubetrain, name).__name__ == name
    assert dir(kubetrain) == sorted(kubetrain.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'sbmit'"):
        _ = kubetrain.sbmit  # type: ignore[attr-defined]


def test_a_missing_extra_is_named() -> None:
    output = python("-I", "-S", "-c", f"import sys; sys.path[:0] = {FOLDERS}; import kubetrain; kubetrain.submit")
    assert output.endswith("run `pip install -e '.[pipelines]'` in kubetrain's clone\n")


def test_type_checkers_know_the_names_and_what_they_return(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    output = python("-m", "mypy", "--config-file", "pyproject.toml", str(tmp_path / "snippet.py"))
    assert 'Revealed type is "dict[str, float]"' in output
    assert 'Revealed type is "pathlib.Path"' in output
    assert 'Module has no attribute "sbmit"' in output
    assert 'Unexpected keyword argument "endpont"' in output
    assert "Found 2 errors" in output
