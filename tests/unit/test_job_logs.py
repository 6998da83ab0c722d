"""The log that a launcher shows, to which several threads write."""

import os
import subprocess
import sys

SHOW_WITH_FOUR_THREADS = """
import sys, threading
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.job_logs import print_line
sys.setswitchinterval(1e-6)
def show(pod):
    for number in range(2000):
        print_line(LogLine(pod, "text"))
threads = [threading.Thread(target=show, args=(f"worker-{number}",)) for number in range(4)]
for thread in threads:
    thread.start()
"""


def test_lines_of_several_threads_do_not_mix() -> None:
    command = [sys.executable, "-c", SHOW_WITH_FOUR_THREADS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(shown) == 4 * 2000
    assert set(shown) == {f"[worker-{number}] text" for number in range(4)}
