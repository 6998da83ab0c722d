"""A local run as the command line and Python ask for it: with settings as text, and a folder of your own code."""

from functools import partial
from pathlib import Path

from kubetrain_pipelines.definitions.project import project
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.local_run.run import run_local
from kubetrain_pipelines.requests import bring_code
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.run_view import progress_view
from kubetrain_pipelines.requests.say import print_line
from kubetrain_pipelines.requests.secret_warnings import secret_warnings


def run_requested(asked: AskedRun, workspace: Path) -> RunRecord:
    """Run the pipeline and show its progress.

    Raises:
        KubetrainError: if the run cannot start. A later failure is in the returned record.
    """
    project()  # an error in it would otherwise be found in the process of the pipeline, without a cause
    read = asked.read()
    brought = bring_code.pack(asked, without=workspace)
    for warning in secret_warnings(read.request):
        print_line(f"warning: {warning}")
    unpack_code = partial(bring_code.unpack_here, brought, workspace / "code")
    with progress_view() as view:
        return run_local(bring_code.with_code(read, brought), workspace, view, unpack_code, brought)
