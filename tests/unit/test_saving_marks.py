"""The launcher learns which processes are saving, and no longer than they do."""

import os
from pathlib import Path

import pytest

from kubetrain_trainer.stop_signal import MARKS_VARIABLE, is_saving, marked_as_saving


def test_a_process_is_marked_until_its_save_ends_even_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARKS_VARIABLE, str(tmp_path))
    with pytest.raises(OSError, match="full"), marked_as_saving():
        assert is_saving(tmp_path, os.getpid())
        raise OSError("the disk is full")
    assert not is_saving(tmp_path, os.getpid())
