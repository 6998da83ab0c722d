"""Failures that real processes provoke here, and what `kubetrain diagnose` makes of their logs."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from support.cli import kubetrain
from support.provoked import FAILURES, HELD_OUT, Failure, provoke

QUICK = ("host_memory", "nccl_wrong_interface", "missing_module")
IN_CI = ("shared_memory", "killed_rank", "permission", "no_dns", "loss_of_nan", "rendezvous_timeout")
ALL: dict[str, Failure] = {**FAILURES, **HELD_OUT}


def marked(name: str) -> object:
    is_thorough = [] if name in IN_CI else [pytest.mark.thorough]
    return pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow, *is_thorough])


@pytest.mark.parametrize("name", map(marked, ALL))
def test_a_provoked_failure_is_named_first(name: str, tmp_path: Path) -> None:
    failure = ALL[name]
    if failure.prefix and not can_run(*failure.prefix):
        pytest.skip(f"{failure.prefix[0]} cannot be used here")
    for folder in (tmp_path, *tmp_path.parents):  # some failures are those of other users
        if Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)
    logs = provoke(name, tmp_path / name)
    found = kubetrain("diagnose", "--json", *logs)
    assert f'"rule": "{failure.rule}"' in found.output.partition('"certainty"')[0], found.output
    assert found.exit_code == 1


def can_run(*prefix: str) -> bool:
    return shutil.which(prefix[0]) is not None and not subprocess.run([*prefix, "true"], check=False).returncode
