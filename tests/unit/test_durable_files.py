"""Writes are atomic, and JSON is valid for every reader."""

import json
import math
import os
from pathlib import Path

import pytest

from kubetrain_trainer.durable_files import read_json, write_atomically, write_json


def test_a_file_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    write_atomically(tmp_path / "file", b"four")
    assert synced[0] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_private_file_is_private_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: modes.append(os.fstat(descriptor).st_mode & 0o777))
    write_atomically(tmp_path / "file", b"secret", 0o600)
    assert modes[0] == 0o600


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    value = {"metrics": {"loss": math.nan, "accuracy": 0.5}, "row": [math.inf, (-math.inf, 1)]}
    write_json(tmp_path / "file", value)
    read = json.loads((tmp_path / "file").read_text(), parse_constant=pytest.fail)
    assert read == read_json(tmp_path / "file")
    assert read == {"metrics": {"loss": None, "accuracy": 0.5}, "row": [None, [None, 1]]}
