"""A function as train.entry in Python: the script that runs it in other processes, and what is refused."""

import concurrent.futures
import functools
import importlib.util as loading
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.bring_code.function_script import SCRIPT, script_text
from kubetrain_trainer.errors import InvalidSetting

RATE, BEST, NAMES = 0.5, float("-inf"), {"losses": [1, 2.5, None], "pair": ("a" * 80, "b" * 80), "on": True}
LOG, TOKEN, TRIPLE, JOIN = StringIO(), "hf_abcdefghijklmnopqrstuvwx", lambda value: 3 * value, ", ".join


@dataclass(frozen=True)
class Settings:
    rate: float = RATE


class Base:
    """Text."""

    def doubled(self, value: float) -> float:
        return 2 * value


class Model(Base):
    @functools.cache  # noqa: B019
    def answer(self, settings: Settings) -> float:
        return self.doubled(scaled(settings.rate))


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return {**function(*arguments, **named), "logged": 1}

    return wrapper


def replaced(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper() -> Any:
        return function()

    return wrapper


def scaled(value: float, times: int = 2) -> float:
    return scaled(RATE * value, times - 1) if times else value


ALIAS = scaled


@logged
def train(epochs: int, settings: "Settings | None" = None, *, best: float = BEST) -> dict[str, float]:
    # A comment stays.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        (answer,) = pool.map(Model().answer, [settings or Settings()])
    print(loading.find_spec("json") is not None, os.path.sep, Path("a"), Base.__doc__)
    return {
        "answer": answer,
        "epochs": epochs,
        "best": max(best, ALIAS(4.0)),
        "names": len(NAMES),
        "pi": math.floor(3.1),
    }


@replaced
def train_replaced() -> None:
    pass


async def train_later() -> None:
    pass


def train_in_steps() -> Iterator[None]:
    yield


def train_with_file() -> None:
    LOG.write("x")


def train_with_token() -> None:
    print(TOKEN)


def train_with_lambda() -> None:
    TRIPLE(1)


def train_with_method() -> None:
    JOIN([])


def train_with_unknown() -> None:
    print(unknown)  # type: ignore[name-defined]  # noqa: F821


def write_script(entry: Any, folder: Path) -> list[str | Path]:
    """Write the script beside an empty output, and return the command that runs it."""
    (folder / SCRIPT).write_text(script_text(functools.partial(entry)))
    return [sys.executable, folder / SCRIPT]


def run_script(entry: Any, folder: Path, rank: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBETRAIN_OUTPUT": str(folder), "PET_NODE_RANK": str(rank)}
    return subprocess.run(
        write_script(entry, folder), env=environment, capture_output=True, text=True, check=False, cwd=folder
    )


def test_a_function_runs_with_all_that_it_uses(tmp_path: Path) -> None:
    done = run_script(functools.partial(train, 3, best=-1.0), tmp_path)
    assert done.stdout == f"True / a {Base.__doc__}\n", done.stderr
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics == {"answer": 0.25, "epochs": 3, "best": 1, "names": 3, "pi": 3, "logged": 1}


def test_nested_functions_run_as_they_are_written(tmp_path: Path) -> None:
    rate = 0.25

    def helped() -> str:
        return f"""
    {rate}
at the left"""

    def train() -> dict[str, float]:
        print(helped())
        return {"rate": rate}

    assert run_script(train, tmp_path).stdout == "\n    0.25\nat the left\n"
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"rate": 0.25}


def test_the_same_function_makes_the_same_script() -> None:
    assert script_text(functools.partial(train, 1)) == script_text(functools.partial(train, 1))
    assert script_text(functools.partial(train, 1)) != script_text(functools.partial(train, 2))


def test_an_error_shows_the_line_of_the_function(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    assert '    raise ValueError("on purpose")' in run_script(fail, tmp_path).stderr


@pytest.mark.parametrize(
    ("returned", "rank", "written"),
    [({"a": 1}, 1, None), (3, 0, None), ({"a": "b"}, 0, None), ({"a": 1}, 0, {"a": 1.0})],
)
def test_numbers_that_the_first_process_returns_are_the_metrics(
    tmp_path: Path, returned: Any, rank: int, written: Any
) -> None:
    def give() -> Any:
        return returned

    done = run_script(give, tmp_path, rank)
    assert done.returncode == 0, done.stderr
    metrics = tmp_path / "metrics.json"
    assert (json.loads(metrics.read_text()) if metrics.exists() else None) == written
    assert ("not used as metrics: a must be a single number" in done.stdout) == (returned == {"a": "b"})


def test_metrics_that_the_function_wrote_are_kept(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"a": 1}')

    def give() -> Any:
        return {"a": 2}

    run_script(give, tmp_path)
    assert (tmp_path / "metrics.json").read_text() == '{"a": 1}'


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        (train_with_file, ["train_with_file uses LOG (StringIO)", "make or import it inside of train_with_file"]),
        (train_with_token, ["train_with_token uses TOKEN (str)", "maybe a secret"]),
        (train_with_lambda, ["train_with_lambda needs TRIPLE (function)", "define it once by def"]),
        (train_with_method, ["train_with_method uses JOIN (builtin_function_or_method)"]),
        (train_with_unknown, ["train_with_unknown uses unknown"]),
        (functools.partial(train, LOG), ["train uses argument 1 (StringIO)"]),
        (functools.partial(train, 1, best=RATE.real.__abs__), ["train uses best (method-wrapper)"]),
        (train, ["train() has missing a required argument: 'epochs'", "functools.partial(train, …)"]),
        (train_later, ["train_later", "without async"]),
        (train_in_steps, ["train_in_steps", "without async and yield"]),
        (train_replaced, ["needs function (function), whose text is not certain", "functools.wraps"]),
        (lambda: None, ["needs <lambda> (function)"]),
        (print, ["train.entry is <built-in function print>"]),
        (Base().doubled, ["train.entry is <bound method Base.doubled"]),
        (Base, ["train.entry is <class", "Base'>"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_sent_along_is_refused_in_a_sentence(entry: Any, parts: list[str]) -> None:
    with pytest.raises(InvalidSetting) as raised:
        script_text(functools.partial(entry))
    for part in parts:
        assert part in str(raised.value)


def test_a_name_with_two_meanings_is_refused() -> None:
    def outer(rate: float) -> Callable[[], float]:
        def inner() -> float:
            return rate

        return inner

    rate, half = 1.0, outer(0.5)

    def train() -> None:
        print(rate, half())

    with pytest.raises(InvalidSetting, match="rate has two meanings"):
        script_text(functools.partial(train))


CELLS = [
    "START = 1\ndef changed(start=START):\n    pass\nSTART = 2",
    "import functools, sys\nRATE = 0.5",
    "class Settings:\n    rate = RATE",
    "class Model:\n    def answer(self):\n        return 'first'",
    "def helped():\n    return 'first'",
    "class Model:\n    def answer(self):\n        return 'second'\n\nclass Twice:\n    a = 1",
    "def helped():\n    return 'second'\n\nclass Twice:\n    a = 2",
    "def helped():\n    return 'first'",  # the text of an earlier cell again
    "def train():\n"
    "    with open(sys.argv[0]) as script:\n"
    "        print(len(script.read()) > 9, helped(), Model().answer(), Settings.rate)",
    "def show():\n    display(1)\n\ndef twice():\n    print(Twice)",
]
IN_NOTEBOOK = f"""
from IPython.core.interactiveshell import InteractiveShell
from kubetrain_components.bring_code.function_script import script_text
shell = InteractiveShell.instance()
for cell in {CELLS!r}:
    shell.run_cell(cell, silent=False).raise_error()
names = shell.user_ns
print(script_text(names["functools"].partial(names["train"])))
for name in ("show", "twice", "changed"):
    try:
        script_text(names["functools"].partial(names[name]))
    except Exception as error:
        print("#", error)
"""


def test_a_notebook_sends_what_its_cells_define_now(tmp_path: Path) -> None:
    finished = subprocess.run([sys.executable, "-c", IN_NOTEBOOK], capture_output=True, text=True, check=False)
    (tmp_path / SCRIPT).write_text(finished.stdout)
    assert "# train.entry: show uses display, which pods lack" in finished.stdout, finished.stderr
    assert "# train.entry: twice needs Twice (type), whose text is not certain" in finished.stdout
    assert "# train.entry: START is not what a default of changed was: define changed again" in finished.stdout
    environment = {**os.environ, "KUBETRAIN_OUTPUT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, tmp_path / SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True first second 0.5\n", done.stderr
