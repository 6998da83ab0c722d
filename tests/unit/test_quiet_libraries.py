"""What libraries say about themselves is not in the logs of steps, which KFP writes from INFO on."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "import logging; logging.basicConfig(level=logging.INFO)\n"


@pytest.mark.parametrize(
    "use",
    [
        "import kubetrain_components.evaluate_model.plots",
        "from kubetrain_components.object_store.s3.requests import S3Requests\n"
        "S3Requests('bucket', 'http://127.0.0.1:1')",
    ],
    ids=["matplotlib", "botocore"],
)
def test_a_library_that_has_what_it_needs_says_nothing(use: str, tmp_path: Path) -> None:
    environment = {"MPLCONFIGDIR": str(tmp_path), "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    command = [sys.executable, "-c", PROGRAM + use]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""
