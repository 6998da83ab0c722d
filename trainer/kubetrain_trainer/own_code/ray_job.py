"""Run a program on the Head of a Ray cluster, as a Ray job that this process follows: its log, its result, its end.

python -m kubetrain_trainer.own_code.ray_job kubetrain_trainer.pytorch_ddp.own_code --data-dir DATA --output-dir OUTPUT

KubeRay starts it in the Submitter of a RayJob, whose exit code and termination message stand for the training.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import LOST_ANOTHER, TransientFailure
from kubetrain_trainer.own_code.program import environment
from kubetrain_trainer.processes.entry_point import run, training_arguments
from kubetrain_trainer.reporting.progress_line import parse_progress
from kubetrain_trainer.stop_signal import EXIT_CODE
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message, write_termination_message

ADDRESS, SUBMISSION = "RAY_DASHBOARD_ADDRESS", "RAY_JOB_SUBMISSION_ID"
"""Variables that KubeRay sets."""
PLAIN_LOG = {"RAY_COLOR_PREFIX": "0", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
"""Without the latter, Ray Train shows each printed line twice."""
OF_WORKER = re.compile(r"\(\w+ pid=\d+[^)]*\) ?")
"""The beginning that Ray gives to each line of a worker."""
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
POLL_SECONDS = 1.0
ANSWER_SECONDS = 60.0
"""Time without an answer after which the Head counts as lost."""


def run_as_ray_job() -> None:
    program = sys.argv.pop(1)
    arguments = training_arguments("Run a program as a Ray job.")
    logging.disable(logging.INFO)  # Ray tells each connection
    message = arguments.output.path / ".ray-result"
    message.parent.mkdir(parents=True, exist_ok=True)
    message.write_text("")
    job = RayJob(os.environ[ADDRESS], os.environ.get(SUBMISSION))
    # The package may not be installed in the image: its folder runs in either case.
    command = [sys.executable, str(Path(__file__).parents[1]), program, *sys.argv[1:]]
    job.start(command, {**environment(arguments), LOG_VARIABLE: str(message), **PLAIN_LOG, **_paths()})
    signal.signal(signal.SIGTERM, lambda *_: job.stop())
    asyncio.run(job.follow())
    _end_as(job, message.read_text())


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}


def _end_as(job: RayJob, message: str) -> None:
    """Report what the program reported, and end as it did."""
    status, words = job.status()
    if job.is_stopped or status == "STOPPED":
        sys.exit(EXIT_CODE)
    write_termination_message(message)
    if status == "SUCCEEDED":
        return
    if "error" in parse_termination_message(message):  # the log has it
        sys.exit(1)
    raise KubetrainError(f"the Ray job ended as {status}: {words.splitlines()[0] if words else 'Ray says no more'}")


class RayJob:
    def __init__(self, address: str, name: str | None) -> None:
        from ray.job_submission import JobSubmissionClient

        url = address if "://" in address else f"http://{address}"
        self._client, self._name = JobSubmissionClient(url), name
        self._printed = 0
        """Number of characters of the log."""
        self._line = ""
        """The line that has begun: a program may end within it, and a connection break."""
        self.is_stopped = False

    def start(self, command: list[str], variables: dict[str, str]) -> None:
        self._name = self._client.submit_job(
            entrypoint=shlex.join(command), submission_id=self._name, runtime_env={"env_vars": variables}
        )

    def stop(self) -> None:
        self.is_stopped = True
        self._client.stop_job(self._name)

    def status(self) -> tuple[str, str]:
        """Return the status and what Ray says about it.

        Raises:
            TransientFailure: if the Head has been silent for a minute.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                info = self._client.get_job_info(self._name)
                return str(info.status), info.message or ""
            except (OSError, RuntimeError) as error:
                if time.monotonic() > deadline:
                    raise TransientFailure(f"{LOST_ANOTHER}: the Head of the Ray cluster ({_first(error)})") from error
                time.sleep(POLL_SECONDS)

    async def follow(self) -> None:
        """Print the log until the job has ended. A connection that breaks begins again at the first character."""
        while True:
            is_whole = await self._print_rest()
            if self.status()[0] in ENDED:
                break
            await asyncio.sleep(POLL_SECONDS)
        if not is_whole:
            await self._print_rest()
        if self._line:
            print(without_prefix(self._line), flush=True)

    async def _print_rest(self) -> bool:
        """Return False if the connection broke."""
        seen = 0
        try:
            async for text in self._client.tail_job_logs(self._name):
                new = text[max(self._printed - seen, 0) :]
                seen += len(text)
                self._printed = max(seen, self._printed)
                *lines, self._line = (self._line + new).split("\n")
                for each in lines:
                    print(without_prefix(each), flush=True)
        except Exception as error:  # noqa: BLE001 - the status decides, not the log
            print(f"the log of the Ray job was cut ({_first(error)})", flush=True)
            return False
        return True


def without_prefix(line: str) -> str:
    """Return a line of progress as its worker wrote it. Others keep what tells the workers apart."""
    bare: Any = OF_WORKER.sub("", line, count=1)
    return bare if parse_progress(bare) else line


def _first(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


if __name__ == "__main__":
    run(run_as_ray_job)
