"""Runs that are asked for as on a command line, as their first step would admit them."""

from kubetrain_components.run.parameters import RunParameters
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.planned_run import planned_run

URIS = ("data.uri=s3://bucket/digits", "model.uri=s3://bucket/models")


def planned(*pairs: str, source: str = "train-pytorch") -> RunParameters:
    return planned_run(AskedRun(source=source, pairs=(*URIS, *pairs)).read(), "doctor")
