"""How the pods of a local job share a machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.local.backend import pod_shares, visible_gpus

ONE_EACH = Job(
    identity=JobIdentity(pipeline="p", stage="s", run_id="r"),
    kind=JobKind.PYTORCH_JOB,
    replicas=(Replica(role="Master", count=1, command=("x",)), Replica(role="Worker", count=1, command=("x",))),
)
TWO_EACH = replace(ONE_EACH, processes_per_replica=2)


@pytest.mark.parametrize(
    ("job", "cpus", "threads"), [(ONE_EACH, 8, "4"), (TWO_EACH, 8, "2"), (TWO_EACH, 3, "1"), (ONE_EACH, 1, "1")]
)
def test_every_pod_gets_its_share_of_threads_and_at_least_one(job: Job, cpus: int, threads: str) -> None:
    shares = pod_shares(job, cpus, gpus=[])
    assert shares == {("Master", 0): {"OMP_NUM_THREADS": threads}, ("Worker", 0): {"OMP_NUM_THREADS": threads}}


@pytest.mark.parametrize(
    ("job", "gpus", "shares"),
    [
        (ONE_EACH, ["0", "1"], ["0", "1"]),
        (ONE_EACH, ["3", "5", "6", "7"], ["3,5", "6,7"]),
        (TWO_EACH, ["0", "1", "2", "3"], ["0,1", "2,3"]),
        (ONE_EACH, ["0"], ["", ""]),
        (TWO_EACH, ["0", "1", "2"], ["", ""]),
    ],
    ids=["one each", "all are used", "one for each process", "too few", "too few for one pod"],
)
def test_pods_do_not_share_a_gpu(job: Job, gpus: list[str], shares: list[str]) -> None:
    assert [share["CUDA_VISIBLE_DEVICES"] for share in pod_shares(job, 2, gpus).values()] == shares


def test_the_gpus_are_those_that_cuda_shows(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a, 2"}, tmp_path) == ["GPU-a", "2"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
