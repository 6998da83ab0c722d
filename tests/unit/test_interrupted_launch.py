"""A Ctrl-C at any moment at which the launcher shares something with its threads: they must still end."""

import queue
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from support.api_server import PODS, ApiServer
from support.manifests import batch

pytestmark = pytest.mark.slow
JOB = batch()
MOMENTS = 61
"""More than pass until the launcher waits for the first change."""


class InterruptAt:
    """Sends SIGINT to this process at one of the moments at which a function of a lock or a thread begins or ends."""

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_shared(frame):
            return None
        if event in ("call", "return"):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self

    def _is_shared(self, frame: FrameType) -> bool:
        if frame.f_code.co_filename != threading.__file__ or frame.f_back is None or frame.f_back.f_back is None:
            return False
        caller, its_caller = frame.f_back.f_code.co_filename, frame.f_back.f_back.f_code.co_name
        is_ours = "/kubetrain_components/" in caller
        return is_ours or (caller == queue.__file__ and its_caller in ("_get_conn", "_put_conn"))


@pytest.fixture(autouse=True)
def running_pod(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "restartCount": 0, "state": {"running": {}}}]}
    server.put(f"{PODS}/other", spec={"containers": [{"name": "main"}]}, status=status)


@pytest.fixture
def no_trace() -> Iterator[None]:
    yield
    sys.settrace(None)


@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_no_thread_outlives_the_launch(no_trace: None, moment: int) -> None:
    sys.settrace(InterruptAt(moment))
    with pytest.raises(KeyboardInterrupt), KubernetesBackend.connect() as backend:
        run_job(JOB, backend, lambda line: None)
