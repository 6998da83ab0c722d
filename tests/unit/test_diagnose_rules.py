"""The table of rules: each sample is recognized by its own rule, and proves no other cause."""

import re
from pathlib import Path

import pytest

from kubetrain_components.run.names import GROUPS, SETTINGS
from kubetrain_pipelines.diagnose.case import Case
from kubetrain_pipelines.diagnose.causes import Cause
from kubetrain_pipelines.diagnose.diagnosis import diagnose
from kubetrain_pipelines.diagnose.page import ADVICE, page
from kubetrain_pipelines.diagnose.rule import Certainty, Rule
from kubetrain_pipelines.diagnose.table import RULES

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = [rule for rule in RULES if rule.certainty is not Certainty.FACT]
SAMPLES = [pytest.param(rule, sample.line, id=rule.name) for rule in SHOWN for sample in rule.samples]


def causes_of(*lines: str) -> list[Cause]:
    return diagnose(Case(statements=[("log", line) for line in lines])).causes


@pytest.mark.parametrize(("rule", "line"), SAMPLES)
def test_a_sample_shows_its_own_rule_and_no_other(rule: Rule, line: str) -> None:
    needed = [next(each for each in RULES if each.name == rule.needs).texts[0]] if rule.needs else []
    assert [(cause.rule.name, cause.certainty) for cause in causes_of(line, *needed)] == [(rule.name, rule.certainty)]


def test_a_rule_that_needs_another_means_nothing_without_it() -> None:
    assert causes_of("node:1:1 [0] NCCL INFO Using network Socket") == []


@pytest.mark.parametrize("rule", SHOWN, ids=lambda rule: rule.name)
def test_a_rule_has_a_remedy_and_a_sample_with_its_source(rule: Rule) -> None:
    assert rule.remedy.endswith(".")
    assert all(sample.source for sample in rule.samples)
    assert rule.samples
    assert {*rule.after, *filter(None, [rule.needs])} <= {each.name for each in RULES}


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_page_is_current() -> None:
    assert (DOCS / "troubleshooting.md").read_text() == page(), "run `make docs`"


def test_settings_in_remedies_exist() -> None:
    others = {"nvidia_peermem", "find_unused_parameters", "static_graph", "memory_format"}  # of a kernel and of a Task
    remedies = " ".join([*(rule.remedy for rule in RULES), *(text for advice in ADVICE for text in advice)])
    named = set(re.findall(rf"\b(?:{'|'.join(GROUPS)})\.[a-z_]+", remedies))
    assert "pods.shm_size" in named
    assert named <= SETTINGS.keys()
    assert set(re.findall(r"(?<![\w./-])[a-z]+_[a-z_]+", remedies)) <= others
