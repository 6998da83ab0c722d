"""The settings page matches the declarations; the administrators' manifests and settings are valid."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.definitions import components_page
from kubetrain_pipelines.definitions.settings_page import page
from kubetrain_trainer.settings.config import TrainConfig

DOCS = Path(__file__).parents[2] / "docs"
FOR_ADMINISTRATORS = sorted((DOCS / "administrators").glob("*.md"))


def name_of(path: Path) -> str:
    return str(path.relative_to(DOCS))


def test_the_page_of_settings_is_current() -> None:
    assert (DOCS / "settings.md").read_text() == page(), "run `make docs`"


def test_the_page_of_steps_is_current() -> None:
    written = DOCS.parent / "components" / "kubetrain_components" / "README.md"
    assert written.read_text() == components_page.page(), "run `make docs`"


def test_the_page_of_steps_has_every_input_and_output() -> None:
    sections = dict(zip(components_page.COMPONENTS, components_page.page().split("\n## ")[1:], strict=True))
    for name, component in components_page.COMPONENTS.items():
        spec = component.component_spec
        assert {*spec.inputs, *spec.outputs} <= set(re.findall(r"`(\w+)`", sections[name]))


def test_the_page_does_not_depend_on_docstrings() -> None:
    """Python 3.13 removes their indentation, -OO removes all of them."""
    command = [sys.executable, "-OO", "-m", "kubetrain_pipelines.definitions.settings_page"]
    path = os.pathsep.join(str(DOCS.parent / name) for name in ("pipelines", "components", "trainer"))
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == (DOCS / "settings.md").read_text()


def test_the_diff_of_an_example_is_every_line_that_uses_the_session() -> None:
    script = (DOCS.parent / "examples" / "ddp_script" / "train.py").read_text().splitlines()
    (diff,) = re.findall(r"```diff\n(.*?)```", (DOCS / "bring_your_own.md").read_text(), re.S)
    added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    assert added == [line for line in script if re.search(r"session\.|import session", line)]
    assert {line[1:] for line in diff.splitlines()} - {"…"} <= set(script)


def test_the_guide_shows_the_commands_of_the_custom_task() -> None:
    script = (DOCS.parent / "examples" / "own_task" / "text_task.py").read_text()
    commands = re.findall(r"^    ((?:python|kubetrain) .*)$", script, re.M)
    assert len(commands) == 2
    assert "\n".join(commands) in (DOCS / "bring_your_own.md").read_text()


@pytest.mark.parametrize("path", FOR_ADMINISTRATORS, ids=name_of)
def test_settings_for_administrators_are_ones_that_exist(path: Path) -> None:
    known = {
        *Placement.names(),
        *Storage.names(),
        *TrainConfig.names(),
        "min_workers",
        "max_workers",
        "processes_per_worker",
        "evaluation_placement",
    }
    assert set(re.findall(r"`([a-z]+_[a-z_]+)`", path.read_text())) <= known


def test_objects_of_settings_for_administrators_are_accepted() -> None:
    objects = [each for path in FOR_ADMINISTRATORS for each in re.findall(r"`({\".*?})`", path.read_text())]
    assert len(objects) > 8
    for settings in map(json.loads, objects):
        (Storage if settings.keys() <= set(Storage.names()) else Placement).from_dict(settings)


def test_manifests_for_administrators_are_whole() -> None:
    blocks = [each for path in FOR_ADMINISTRATORS for each in re.findall(r"```yaml\n(.*?)```", path.read_text(), re.S)]
    manifests = [manifest for block in blocks for manifest in yaml.safe_load_all(block)]
    assert len(manifests) > 5
    assert all(manifest.keys() >= {"apiVersion", "kind", "metadata"} for manifest in manifests)
