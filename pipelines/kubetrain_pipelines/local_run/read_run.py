"""Read the run of a workspace as it is now, from its record and its events."""

from pathlib import Path

from kubetrain_components.jobs.local.owner import is_running
from kubetrain_components.run.events import EventReader
from kubetrain_pipelines.local_jobs import read_record
from kubetrain_pipelines.local_run.record import RunRecord

KILLED = "its process was killed, or could not write how it ended"
UNKNOWN = "unknown"
"""The status of a run that an earlier version has begun."""


def read_run(workspace: Path) -> RunRecord:
    """
    Raises:
        InvalidSetting: if the workspace has no record of a run.
    """
    written = read_record(workspace)
    record = RunRecord(
        pipeline=written.get("pipeline", ""),
        workspace=workspace,
        parameters={},
        config={},
        started=written.get("started", 0.0),
        run_id=written["run_id"],
    )
    for event in EventReader(workspace / "events.jsonl").new_events():
        record.add(event)  # the first one has the ID, which is not in the record before its end
    record.status, record.finished = written["status"], written.get("finished", 0.0)
    record.error = written["error"] or record.error  # before its end, the error of a stage is only in the events
    if record.status == "running" and not written.get("owner"):
        record.status = UNKNOWN
    elif record.status == "running" and not is_running(written["owner"]):
        record.status, record.error = "failed", record.error or KILLED
    return record
