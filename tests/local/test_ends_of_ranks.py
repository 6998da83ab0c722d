"""However one of several processes ends, the verdict comes soon and names the line, and no restart waits in vain."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.local import backend as local_backend
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.jobs.local.operator import pod_environments
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.settings.config import TrainConfig
from support.ends_of_ranks import BEFORE, BEFORE_IN_TORCH, WAYS, check_names_it, program


def trained(folder: Path, framework: str, entry: dict[str, Any], min_workers: int = 0) -> tuple[str, float, str]:
    """Return what the verdict says, the seconds from the first end to it, and the ranks that started."""
    training = TrainingJob(
        framework=framework,
        config=TrainConfig(entry=entry, data="synthetic", metrics_port=0),
        pipeline="train",
        run_id="run",
        data_dir=folder,
        output_dir=folder / "run",
        min_workers=min_workers,
        placement=replace(Placement(), max_restarts=1),
    )
    heard: list[tuple[float, LogLine]] = []
    with LocalBackend(folder / ".jobs") as backend:
        with pytest.raises(JobFailed) as failed:
            launch_training(training, backend, lambda line: heard.append((time.monotonic(), line)))
        ends = [pod.ended for pod in backend.times(training.to_job()).pods if pod.ended]
    starts = folder / "run" / "starts"
    return str(failed.value), time.time() - min(ends), starts.read_text() if starts.exists() else ""


@pytest.mark.parametrize("kind", ["script", "command"])
def test_a_restart_that_would_wait_for_others_in_vain_is_none(tmp_path: Path, kind: str) -> None:
    check(tmp_path, next(iter(WAYS)), kind, "tensorflow", BEFORE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [*[*WAYS][1:6], *(pytest.param(way, marks=pytest.mark.thorough) for way in [*WAYS][6:])]
)
def test_the_verdict_comes_soon_and_names_the_line(tmp_path: Path, way: str) -> None:
    check(tmp_path, way, "script", "tensorflow", BEFORE)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_the_verdict_on_processes_of_torchrun(tmp_path: Path, way: str) -> None:
    check(tmp_path, way, "script", "pytorch", BEFORE_IN_TORCH)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_rank_0_of_an_elastic_job_fails_when_the_other_has_ended_in_whichever_pod_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    def of_pods(*arguments: Any) -> Any:  # torchrun numbers the pods by their addresses
        environments = pod_environments(*arguments)
        for (_, index), environment in environments.items():
            environment["PET_LOCAL_ADDR"] = f"127.0.0.{1 if index == first else 2}"
        return environments

    monkeypatch.setattr(local_backend, "pod_environments", of_pods)
    way = "rank 0 raises when the other has ended"
    text = program(way, BEFORE_IN_TORCH)
    (tmp_path / "train.py").write_text(text)
    verdict, seconds, started = trained(tmp_path, "pytorch", {"script": str(tmp_path / "train.py")}, min_workers=2)
    assert f"worker-{first}: " in verdict
    check_names_it(verdict, way, text)
    assert seconds < 30
    assert sorted(started) == ["0", "1"], "nothing started again"


def check(folder: Path, way: str, kind: str, framework: str, before: str) -> None:
    text, (_, _, *starts) = program(way, before), WAYS[way]
    (folder / "train.py").write_text(text)
    script = str(folder / "train.py")
    entry = {"script": script} if kind == "script" else {"command": [sys.executable, "-u", script]}
    verdict, seconds, started = trained(folder, framework, entry)
    check_names_it(verdict, way, text)
    assert seconds < 30
    assert all(started.count(str(rank)) <= most for rank, most in enumerate(starts)), started
