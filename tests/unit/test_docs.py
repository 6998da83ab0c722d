"""The pages under docs/ say what is so: settings as they are declared, links to what is there."""

import re
from pathlib import Path

import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.sync_dataset.storage import Storage
from kubetrain_pipelines.settings_page import page
from kubetrain_trainer.config import TrainConfig

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def test_the_page_of_settings_is_current() -> None:
    assert (DOCS / "settings.md").read_text() == page(), "run `make docs`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if "://" not in link and not (DOCS / link).exists()] == []


def test_settings_for_administrators_are_ones_that_exist() -> None:
    text = (DOCS / "administrators.md").read_text()
    known = {*Placement.names(), *Storage.names(), *TrainConfig.names(), "min_workers", "placement"}
    written = re.findall(r'"(\w+)":', text) + re.findall(r"`([a-z]+_[a-z_]+)`", text)
    assert len(written) > 15
    assert set(written) <= known
