"""What the packages bring along for their users."""

from importlib.resources import files

import pytest


@pytest.mark.parametrize("package", ["kubetrain_pipelines", "kubetrain_components", "kubetrain_trainer"])
def test_type_checkers_may_read_the_types(package: str) -> None:
    assert (files(package) / "py.typed").is_file()
