"""A Ctrl-C at any moment at which the launcher shares something with its threads: they must still end."""

import queue
import threading
from pathlib import Path
from types import FrameType

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from support.api_server import PODS, ApiServer
from support.interrupt_at import interrupt_at
from support.manifests import batch

pytestmark = pytest.mark.slow
JOB = batch()
MOMENTS = 61
"""More than pass until the launcher waits for the first change."""


def is_shared(frame: FrameType) -> bool:
    """Return True for a function of a lock or a thread that we or the pool of connections call."""
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


@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_no_thread_outlives_the_launch(moment: int) -> None:
    with pytest.raises(KeyboardInterrupt), interrupt_at(moment, is_shared), KubernetesBackend.connect() as backend:
        run_job(JOB, backend, lambda line: None)
