"""Printed manifests have the types that kubectl reads from them."""

import re

import pytest
import yaml

from kubetrain_components.manifest_text import as_yaml

NUMBERS = ["1234e5", "0x1f", "0o17", "017", "1_000", "1:30", ".5", "+1", "-1", "2026-11-24", ".inf", "1", "1.5"]
WORDS = ["n", "N", "y", "yes", "No", "on", "OFF", "true", "null", "~", ""]
HARMLESS = ["node1", "/dev/shm", "registry.example.com/team/image:1", "kubetrain/run-id", "python", "NCCL_DEBUG", "e5"]


@pytest.mark.parametrize("text", [*NUMBERS, *WORDS])
def test_text_that_kubectl_takes_for_another_type_is_quoted(text: str) -> None:
    assert as_yaml([{text: text}]) in (f"'{text}': '{text}'\n", "? ''\n: ''\n")


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_is_not(text: str) -> None:
    assert as_yaml([{text: text}]) == f"{text}: {text}\n"


@pytest.mark.parametrize("text", [*NUMBERS, *WORDS, *HARMLESS, "a: b", "a #b", "- a", "two\nlines\n", "x" * 200, "{}"])
def test_everything_reads_back_as_it_was(text: str) -> None:
    value = {"list": [text, 1, 1.5, True, None], "text": text}
    assert list(yaml.safe_load_all(as_yaml([value, value]))) == [value, value]
    assert not re.search(r"\s$", as_yaml([value]).rstrip("\n"))
