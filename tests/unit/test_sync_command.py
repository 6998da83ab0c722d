"""The lines that `kubetrain sync` prints in a log instead of a progress bar."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from kubetrain_components.sync_dataset.progress import SyncProgress
from kubetrain_pipelines.cli import sync as sync_command
from kubetrain_pipelines.cli.main import kubetrain
from kubetrain_pipelines.cli.sync import describe_progress, progress_lines


def test_a_line_has_the_rate_and_the_time_left() -> None:
    halfway = SyncProgress(objects=5, bytes=50_000_000, total_objects=10, total_bytes=100_000_000)
    assert describe_progress(halfway, 2_000_000) == "5/10 objects, 50.0 MB of 100.0 MB, 2.0 MB/s, 0:00:25 left"
    assert describe_progress(halfway, 0) == "5/10 objects, 50.0 MB of 100.0 MB, no data arriving"


def test_a_line_warns_early_that_a_sync_will_fail() -> None:
    doomed = SyncProgress(objects=5, bytes=5, total_objects=10, total_bytes=10, unusable=2)
    assert describe_progress(doomed, 0).startswith("5/10 objects (2 more cannot be files: the sync will fail), ")


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 2), (60.0, 0)])
def test_lines_are_printed_at_intervals(
    seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sync_command, "LINE_SECONDS", seconds)
    with progress_lines() as show:
        for done in (1, 2):
            show(SyncProgress(objects=done, bytes=done, total_objects=2, total_bytes=2))
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_an_upload_is_refused_instead_of_filling_a_folder_called_s3(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with CliRunner().isolated_filesystem(tmp_path):
        done = CliRunner().invoke(kubetrain, ["sync", str(tmp_path), "s3://bucket/flowers"])
        assert done.exit_code == 2
        assert "'s3://bucket/flowers' is not a path on this machine: kubetrain only downloads" in done.output
        assert not [*Path().iterdir()]
