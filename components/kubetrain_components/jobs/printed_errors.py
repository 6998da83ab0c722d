"""The error that a program has printed last, for pods that report none, such as those of a command of your own."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kubetrain_components.jobs.job_state import PodState
from kubetrain_trainer.failures import LIBRARIES, LOST_ANOTHER, is_of_lost_process
from kubetrain_trainer.some_of import MAX_NAMED
from kubetrain_trainer.termination import failure_message, parse_termination_message

PREFIX = re.compile(r"^\[[a-z]+\d+\]:\s?")
"""The prefixes of torch and torchrun before the lines of a process."""
CALL = re.compile(r'\s+File "(?P<file>.+)", line (?P<line>\d+)')
OF_LIBRARY = (*LIBRARIES, "/lib/python3", "<")
ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Failure|Warning)\b(?:: .*)?$")
FATAL = "Fatal Python error: "
"""The calls follow it, if faulthandler is enabled."""
USAGE = re.compile(r"\S+: error: ")
"""argparse prints it without calls."""
OF_TORCHRUN = "torch.distributed.elastic."
"""torchrun's own errors repeat that processes failed."""
SIGNALS = 128
RESTARTED = "; restarting"
"""The end of the launcher's line between two starts of a pod."""


def with_printed_errors(pods: Sequence[PodState], tail_of: Callable[[str], Sequence[str]]) -> tuple[PodState, ...]:
    """Return the pods, where the first of those that failed without a report have the error that they printed."""
    silent = sorted(filter(_says_nothing, pods), key=lambda pod: pod.finished)[:MAX_NAMED]
    told = {pod.name: _with_printed_error(pod, tail_of(pod.name)) for pod in silent}
    return tuple(told.get(pod.name, pod) for pod in pods)


def _says_nothing(pod: PodState) -> bool:
    return bool(pod.exit_code) and not pod.cause and "error" not in parse_termination_message(pod.last_words)


def _with_printed_error(pod: PodState, tail: Sequence[str]) -> PodState:
    error, code = printed_error(tail), pod.exit_code or 0
    # A signal may have ended the pod long after an error.
    if not error or (code > SIGNALS and not error.startswith(FATAL)):
        return pod
    sentence = f"{LOST_ANOTHER}: {error}" if is_of_lost_process(error) else error
    return replace(pod, last_words=json.dumps(failure_message(sentence, curable=True)))


def printed_error(lines: Sequence[str]) -> str:
    """Return the last error with its line, such as "ValueError: broken (train.py, line 3)"; empty if there is none.

    An error that follows from the loss of another process counts only if its start of the pod printed no other one.
    """
    starts: list[list[str]] = [[]]
    for line in lines:
        if line.endswith(RESTARTED):
            starts.append([])
        starts[-1].append(PREFIX.sub("", line))
    errors = next(filter(None, (list(_errors(start)) for start in reversed(starts))), [])
    causes = [error for error in errors if not is_of_lost_process(error)]
    return next(reversed(causes or errors), "")


def _errors(lines: Iterable[str]) -> Iterator[str]:
    fatal, calls = "", list[str]()
    for line in lines:
        if call := CALL.match(line):
            calls.append("" if any(part in call["file"] for part in OF_LIBRARY) else _place(call))
            if fatal and calls[-1]:
                yield fatal + calls[-1]
                fatal = ""
        elif line.startswith(FATAL):
            fatal, calls = line, []
        elif USAGE.match(line) or (calls and ERROR.match(line) and not line.startswith(OF_TORCHRUN)):
            yield line + next((item for item in reversed(calls) if item), "")
            calls = []


def _place(call: re.Match[str]) -> str:
    return f" ({Path(call['file']).name}, line {call['line']})"
