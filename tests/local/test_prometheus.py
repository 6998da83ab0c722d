"""deploy/monitoring in a real Prometheus: queries that find something, and alerts that real faults raise."""

import math
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.reporting.metrics_page import MetricsPage, serve_metrics
from support.cli import KUBETRAIN, interrupt, processes_of
from support.prometheus import alert_rules, dashboard_queries, one_training, prometheus, rule_groups, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="runs Prometheus (Debian's package)"),
]
OF_SOME = ("kubetrain_mfu", "kubetrain_gpu_", "kubetrain_straggler{")
"""Metrics that only trainings with GPUs or with a slow process have."""
OF_A_HANG = {"KubetrainNoProgress", "KubetrainCheckpointTooOld"}
HEALTHY = {"step": 20, "loss": 0.5, "data_wait_share": 0.1, "idle_share": 0.1}
SLOW = {"rank": 3, "node": "gpu-7", "part": "data", "delay_share": 0.3}


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule_groups()))
    done = subprocess.run(
        ["promtool", "check", "rules", tmp_path / "rules.yaml"], check=True, capture_output=True, text=True
    )
    assert f"{len(alert_rules())} rules found" in done.stdout


@contextmanager
def training(data: Path, output: Path, port: int) -> Iterator[None]:
    """Train in two processes, whose output nobody has to read."""
    command = ["train", "train-pytorch", "--data", data, "--output", output, "--run-id", "run"]
    settings = {"metrics_port": port, "epochs": 1000, "checkpoint_every": 10, "log_every": 5, "precision": "fp32"}
    flags = [f"--set=train.{name}={value}" for name, value in settings.items()]
    run = subprocess.Popen(
        [KUBETRAIN, *command, "--set", "pods.workers=2", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        interrupt(run)


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.mark.thorough
def test_a_process_that_hangs_raises_alerts_and_every_panel_shows_something(digits: Path, tmp_path: Path) -> None:
    port, output = free_ports(1)[0], tmp_path / "output"
    with training(digits, output, port), prometheus(tmp_path, one_training(port)) as server:
        wait_until(lambda: server.query("kubetrain_checkpoint_stall_seconds_count > 1"))
        for query in dashboard_queries():
            assert server.query(query) or any(name in query for name in OF_SOME), query
        for group in server.ask("rules")["groups"]:
            assert {rule["health"] for rule in group["rules"]} == {"ok"}, group
        assert not server.firing() & OF_A_HANG
        second = [each for each in processes_of(output) if each.environ().get("RANK") == "1"]
        with stopped(second):
            wait_until(lambda: server.firing() >= OF_A_HANG)
        wait_until(lambda: not server.firing() & OF_A_HANG)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("restarts", "fault", "alerts"),
    [
        (3, {}, {"KubetrainRestarts"}),
        (2, {"loss": math.nan, "data_wait_share": 0.5}, {"KubetrainNotFinite", "KubetrainWaitsForData"}),
        (0, {"skipped_steps": 1}, {"KubetrainNotFinite"}),
        (0, {"stragglers": [SLOW]}, {"KubetrainStraggler"}),
        (0, {"idle_share": 0.6}, {"KubetrainIdle"}),
    ],
)
def test_what_a_page_shows_raises_alerts(
    restarts: int, fault: dict[str, Any], alerts: set[str], tmp_path: Path
) -> None:
    port, pages = free_ports(1)[0], [page_of(0, HEALTHY)]

    def newest() -> str:
        return pages[-1].text()

    with ExitStack() as served:
        server = served.enter_context(prometheus(tmp_path, one_training(port)))
        served.callback(serve_metrics(port, newest))
        wait_until(lambda: server.query("kubetrain_step"))
        assert server.firing() == set()
        pages.append(page_of(restarts, {**HEALTHY, **fault}))
        wait_until(lambda: server.firing() - OF_A_HANG == alerts)


def page_of(restarts: int, row: dict[str, Any]) -> MetricsPage:
    page = MetricsPage("run", world_size=2, restarts=restarts)
    page.show_steps(row, stragglers=row.get("stragglers", ()))
    return page
