"""What the packages bring along for their users."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*/__init__.py")} - {"tests/support"}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_type_checkers_may_read_the_types(package: str) -> None:
    assert (files(package.rpartition("/")[2]) / "py.typed").is_file()


def test_the_wheel_has_every_package() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(build["only-include"]) == {*PACKAGES, "deploy"}
