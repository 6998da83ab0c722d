"""A pod on this machine: a process and its children, with a log, a restart count and a termination message."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kubetrain_components.jobs.job import Replica
from kubetrain_components.jobs.job_state import Phase, PodState, PodTimes
from kubetrain_components.jobs.local.loopback import HOST, without_proxy
from kubetrain_components.jobs.local.process_guard import end_marked
from kubetrain_trainer.reporting.metrics_page import HOST_VARIABLE
from kubetrain_trainer.termination import LOG_VARIABLE, failure_message

# Set by the operator or torchrun: values from the launcher's own environment must not reach a pod.
INJECTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG", "GROUP_RANK", "ROLE_RANK")
INJECTED_PREFIXES = ("PET_", "TORCHELASTIC_", "LOCAL_", "GROUP_WORLD_", "ROLE_WORLD_", "KUBETRAIN_POD_")

DISK_FULL = (
    "no space is left on the disk of {folder}, so that the reason could not be written either: free space, then start "
    "this run again"
)


class LocalPod:
    def __init__(self, replica: Replica, index: int, environment: Mapping[str, str], directory: Path) -> None:
        self.state = PodState(role=replica.role, index=index, phase=Phase.PENDING)
        self.restart_policy = replica.restart_policy
        self._command = replica.command
        self._mark = f"KUBETRAIN_POD_{os.urandom(8).hex()}"
        self._log = directory / f"{self.state.name}.log"
        self._last_words = directory / f"{self.state.name}.termination"
        self._environment = {
            **inherited_environment(os.environ),
            **replica.env,
            **environment,
            LOG_VARIABLE: str(self._last_words),
            self._mark: self.state.name,
        }
        self._gpus = len([word for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word])
        self._created, self._starts = time.time(), list[float]()
        self._process: subprocess.Popen[bytes] | None = None
        self._failed_to_start = False
        self._log.touch()

    def start(self) -> None:
        self._last_words.write_text("")
        self._starts.append(time.time())
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"cannot start {self._command[0]}: {error}\n".encode())
                self._failed_to_start = True
                self._record_end(127)
                return
        self.state = replace(self.state, phase=Phase.RUNNING, started=self._starts[-1])

    def expect_restart(self) -> None:
        """Report the pod as running while its container waits for a restart."""
        self.state = replace(self.state, phase=Phase.RUNNING)

    def restart(self) -> None:
        self.state = replace(self.state, restarts=self.state.restarts + 1)
        self.start()

    def poll(self) -> bool:
        """Return True if the container has ended since the last call, and end the processes that it started."""
        if self._process is None:
            failed, self._failed_to_start = self._failed_to_start, False
            return failed
        if (code := self._process.poll()) is None:
            return False
        end_marked(self._mark, grace_seconds=0)
        self._record_end(code if code >= 0 else 128 - code)
        return True

    def stop(self, grace_seconds: float) -> None:
        """Terminate the first process, and kill all that remain after the grace period, like a kubelet."""
        if self._process is None:
            if self.state.phase is Phase.RUNNING:  # it waits for a restart
                self.state = replace(self.state, phase=Phase.FAILED)
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        end_marked(self._mark, grace_seconds=0)
        self._process.wait()
        self.poll()

    def times(self) -> PodTimes:
        first, *later = self._starts or [0.0]
        ended = self.state.finished if self.state.phase.is_final else 0.0
        return PodTimes(
            created=self._created,
            scheduled=self._created,
            started=first,
            restarted=tuple(later),
            ended=ended,
            gpus=self._gpus,
        )

    def _record_end(self, code: int) -> None:
        self._process = None
        self.state = replace(
            self.state,
            phase=Phase.SUCCEEDED if code == 0 else Phase.FAILED,
            exit_code=code,
            last_words=self._read_last_words(code),
            finished=time.time(),
        )

    def _read_last_words(self, code: int) -> str:
        """Return the termination message, or what is known without one if it could not be written."""
        words, folder = self._last_words.read_text(errors="replace"), self._last_words.parent
        if words or not code or shutil.disk_usage(folder).free:
            return words
        return json.dumps(failure_message(DISK_FULL.format(folder=folder), curable=False))


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the launcher's environment with this Python first on PATH, without variables that a job injects."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in INJECTED and not name.startswith(INJECTED_PREFIXES)
    }
    programs = str(Path(sys.executable).parent)
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    path = f"{programs}{os.pathsep}{kept.get('PATH', '')}"
    own = {"PATH": path, "GLOO_SOCKET_IFNAME": loopback, HOST_VARIABLE: HOST}
    return {**kept, **without_proxy(kept), **own}
