"""A terminal that is closed while `kubetrain train --cluster` follows a job: the job continues, and that is said."""

import signal
import time
from pathlib import Path

import pytest

from support.api_server import ApiServer
from support.cli import start

pytestmark = pytest.mark.slow
JOBS = "/apis/batch/v1/namespaces/tests/jobs/"
SETTINGS = ("--set", "pods.launcher=job", "--set", "pods.workers=1", "--set", "pods.image=python:3.11-slim")


def test_the_job_stays(tmp_path: Path) -> None:
    with ApiServer() as server:
        server.serve("batch/v1", "jobs")
        launcher = start(
            "train", "jax", "--cluster", *SETTINGS, "--", "python", KUBECONFIG=str(server.kubeconfig(tmp_path))
        )
        deadline = time.monotonic() + 60
        while not any("watch=true" in request and "jobs" in request for request in server.requests):
            assert time.monotonic() < deadline and launcher.poll() is None
            time.sleep(0.05)
        launcher.send_signal(signal.SIGHUP)
        output, _ = launcher.communicate(timeout=30)
        assert launcher.returncode == 128 + signal.SIGHUP
        assert "the job continues; follow it again with --run-id" in output
        assert any(path.startswith(JOBS) for path in server.objects)
