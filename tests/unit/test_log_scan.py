"""Lines are found wherever they stand in a log, and carry the numbers that editors show."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_pipelines.diagnose.scan import CHUNK_BYTES, GRAM, MAX_LINE_BYTES, LogScan, Match, Prefilter
from kubetrain_pipelines.diagnose.table import FIRST_ERROR, RULES

OOM = b"torch.OutOfMemoryError: CUDA out of memory."
LITERALS = sorted({literal for rule in (*RULES, FIRST_ERROR) for literal in rule.literals})


def matches(folder: Path, text: bytes) -> Iterator[Match]:
    path = folder / "rank-0.log"
    path.write_bytes(text)
    return LogScan("rank-0.log").read(path).matches()


def found(folder: Path, text: bytes) -> list[tuple[str, int, str]]:
    return [(match.rule.name, match.line, match.text) for match in matches(folder, text)]


@pytest.mark.parametrize(("before", "after"), [(b"", b""), (b"x", b""), (b"", b"x\n"), (b"xx\nxxx", b"xxxx\r")])
def test_each_text_of_a_rule_is_found_at_every_place(before: bytes, after: bytes) -> None:
    prefilter = Prefilter(LITERALS, [])
    for literal in LITERALS:
        places = prefilter.places(before + literal + after)
        assert any(len(before) <= place <= len(before + literal) - GRAM for place in places), literal
    assert not len(prefilter.places(b"qqq")) + len(prefilter.places(b"no rule looks for this line"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OOM, 1),
        (b"\n" + OOM + b"\n", 2),
        (b"one\r\ntwo\r\n" + OOM + b"\r\n", 3),
        (b"1%\r2%\r3%\n4%\r" + OOM + b"\r5%\n", 2),
        (b"\r" * MAX_LINE_BYTES * 20 + b"\n" + OOM, 2),
        (b"\0\xff\x1b[31m" * 999 + b"\n\n" + OOM, 3),
    ],
)
def test_a_line_has_the_number_that_editors_show(text: bytes, line: int, tmp_path: Path) -> None:
    assert found(tmp_path, text) == [("gpu-memory", line, OOM.decode())]


@pytest.mark.parametrize(
    ("line", "rule", "text"),
    [
        (b"\x1b[1;31mtorch.OutOfMemoryError\x1b[0m: CUDA out of memory.\x1b[K", "gpu-memory", OOM.decode()),
        (b"\x1b[31mValueError: 3\x1b[0m", "first-error", "ValueError: 3"),
        (b"ValueError: \x1b]0;title\x07\t3\x00", "first-error", "ValueError:  ]0;title  3"),
    ],
)
def test_colors_hide_no_error_and_nothing_controls_the_terminal(
    line: bytes, rule: str, text: str, tmp_path: Path
) -> None:
    assert found(tmp_path, line) == [(rule, 1, text)]


@pytest.mark.parametrize("distance", range(len(OOM) + 2))
def test_a_line_across_two_reads_is_found(distance: int, tmp_path: Path) -> None:
    filler = b"x" * 1023 + b"\n"
    before = filler * (CHUNK_BYTES // 1024 - 1) + b"x" * (1023 - distance) + b"\n"
    assert found(tmp_path, before + OOM) == [("gpu-memory", CHUNK_BYTES // 1024 + 1, OOM.decode())]


def test_an_endless_line_is_read_in_pieces(tmp_path: Path) -> None:
    (match,) = matches(tmp_path, b"x" * CHUNK_BYTES + OOM + b"x" * CHUNK_BYTES + b"\n")
    assert len(match.text) <= MAX_LINE_BYTES
