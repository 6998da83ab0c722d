"""The settings page matches the declarations; the settings, files of runs and manifests on all pages are valid."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS
from kubetrain_components.run.names import GROUPS, SETTINGS, find_setting
from kubetrain_components.run.request import Request, merged, parameters_of
from kubetrain_pipelines.definitions import components_page
from kubetrain_pipelines.definitions.settings_page import page
from kubetrain_pipelines.requests.planned_run import planned_run
from kubetrain_pipelines.requests.request_file import read_source

DOCS = Path(__file__).parents[2] / "docs"
OTHER_PAGES = ("README.md", "benchmarks/README.md", "deploy/README.md", "deploy/monitoring/README.md")
PAGES = [*sorted(DOCS.rglob("*.md")), *(DOCS.parent / name for name in OTHER_PAGES)]
PLACES: Request = {"data": {"uri": "s3://bucket/dataset"}, "model": {"uri": "s3://bucket/models"}}
GROUP = "|".join(GROUPS)
FILES = {"model.json", "model.pt", "train.py"}
"""Files with names like those of settings."""


def name_of(path: Path) -> str:
    return str(path.relative_to(DOCS.parent))


MANIFEST = "apiVersion"


def blocks_of(path: Path) -> list[str]:
    """Return the YAML on a page."""
    return re.findall(r"```yaml\n(.*?)```", path.read_text(), re.S)


def requests_of(path: Path) -> list[str]:
    """Return the files of runs on a page, and the single groups in its text, such as `pods: {gpus: 1}`."""
    groups = re.findall(rf"`((?:{GROUP}): {{[^`]*}})`", path.read_text())
    return [block for block in blocks_of(path) if MANIFEST not in block] + groups


REQUESTS = [(path, request) for path in PAGES for request in requests_of(path)]


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


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_names_settings_that_exist_with_their_group(path: Path) -> None:
    text = path.read_text()
    named = re.findall(rf"`((?:{GROUP})\.[a-z_]+)(?:\.\w+)*(?:=[^`]*)?`", text)
    for name in {*named} - FILES:
        find_setting(name)
    without_group = {setting.key for setting in SETTINGS.values() if "_" in setting.key}
    assert {*re.findall(r"`([a-z]+_[a-z_]+)(?:=[^`]*)?`", text)} & without_group == set()


@pytest.mark.parametrize(("path", "text"), REQUESTS, ids=[name_of(path) for path, _ in REQUESTS])
def test_a_file_of_a_run_on_a_page_is_accepted(path: Path, text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    read = read_source(str(tmp_path / "run.yaml"))
    if read.pipeline in COMMAND_FRAMEWORKS:
        assert parameters_of(merged(read.request, PLACES)).placement.image
    else:
        assert planned_run(read, "RUN-ID", PLACES)


def test_manifests_are_whole() -> None:
    blocks = [block for path in PAGES for block in blocks_of(path) if MANIFEST in block]
    manifests = [manifest for block in blocks for manifest in yaml.safe_load_all(block)]
    assert len(manifests) > 5
    assert all(manifest.keys() >= {"apiVersion", "kind", "metadata"} for manifest in manifests)
