"""The page that Prometheus reads, and the server, which must not disturb the training."""

import contextlib
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_components.jobs.local.pod import inherited_environment
from kubetrain_trainer.reporting import metrics_page
from kubetrain_trainer.reporting.metrics_page import MetricsPage, serve_metrics
from kubetrain_trainer.reporting.step_window import StepWindow
from support.outside import sample, samples_of, scrape

ROW = {"step": 20, "epoch": 1, "loss": 0.5, "learning_rate": 0.1, "samples_per_second": 64.0, "data_wait_share": 0.25}

Serve = Callable[[int, Callable[[], str]], None]


def window_of(seconds: list[float]) -> StepWindow:
    moments = iter([0.0, 0.0, *(sum(seconds[: count + 1]) for count in range(len(seconds)))])
    window = StepWindow(lambda: next(moments))
    for _ in seconds:
        window.count_step(samples=8)
    return window


def test_what_prometheus_reads() -> None:
    page = MetricsPage("run-1", world_size=4, restarts=2)
    page.show_steps({**ROW, "gpu_memory_peak_bytes": 2**34}, window_of([1.0] * 8 + [2.0, 4.0]))
    assert sample(samples_of(page.text()), "skipped_steps_total") == 0
    page.show_steps({**ROW, "gpu_memory_peak_bytes": 2**34, "skipped_steps": 3}, window_of([1.0] * 8 + [2.0, 4.0]))
    page.show_checkpoint({"loss": 0.25, 'top"5\\': 0.9}, stall_seconds=0.5)
    page.show_checkpoint({"loss": 0.25, 'top"5\\': 0.9}, stall_seconds=0.25)
    read = samples_of(page.text())
    assert {name: sample(read, name) for name in ROW} == ROW
    assert sample(read, "gpu_memory_peak_bytes") == 2**34
    assert sample(read, "skipped_steps_total") == 3
    assert sample(read, "run_info", run_id="run-1") == 1
    assert (sample(read, "processes"), sample(read, "restarts_total")) == (4, 2)
    assert [sample(read, "step_seconds", quantile=each) for each in ("0.5", "0.9", "0.99")] == [1.0, 2.0, 4.0]
    assert (sample(read, "step_seconds_sum"), sample(read, "step_seconds_count")) == (14.0, 10)
    assert sample(read, "validation", metric='top"5\\') == 0.9
    assert (sample(read, "checkpoint_stall_seconds_sum"), sample(read, "checkpoint_stall_seconds_count")) == (0.75, 2)


def test_slow_processes_have_a_gauge_until_they_are_fast_again() -> None:
    page, slow = MetricsPage("run", world_size=4, restarts=0), {"rank": 3, "node": "gpu-7", "part": "data"}
    page.show_steps(ROW, stragglers=[{**slow, "delay_share": 0.3}])
    assert sample(samples_of(page.text()), "straggler", rank="3", node="gpu-7", part="data") == 0.3
    page.show_steps(ROW)
    assert not any(name == "straggler" for name, _ in samples_of(page.text()))


def test_the_page_is_valid_before_the_first_step() -> None:
    read = samples_of(MetricsPage("run", world_size=1, restarts=0).text())
    assert sample(read, "checkpoint_stall_seconds_count") == 0
    assert sample(read, "skipped_steps_total") == 0, "or Prometheus would not see the first steps that are skipped"
    assert not any(name in ("step", "loss", "gpu_memory_peak_bytes") for name, _ in read)


def test_the_age_of_a_checkpoint_grows_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(metrics_page, "time", SimpleNamespace(monotonic=lambda: now[0]))
    page = MetricsPage("run", world_size=1, restarts=0)
    now[0] += 60
    assert sample(samples_of(page.text()), "checkpoint_age_seconds") == 60
    page.show_checkpoint({"loss": 1.0}, stall_seconds=0.0)
    now[0] += 1
    assert sample(samples_of(page.text()), "checkpoint_age_seconds") == 1


def test_nan_and_infinity_are_valid_values() -> None:
    page = MetricsPage("run", world_size=1, restarts=0)
    page.show_steps({**ROW, "loss": math.nan, "learning_rate": math.inf}, window_of([1.0]))
    read = samples_of(page.text())
    assert math.isnan(sample(read, "loss"))
    assert sample(read, "learning_rate") == math.inf


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as served:

        def serve(port: int, page: Callable[[], str]) -> None:
            served.callback(serve_metrics(port, page))

        yield serve


def test_each_scrape_sees_the_newest_page(serve: Serve) -> None:
    port, values = free_ports(1)[0], iter(range(10))
    serve(port, lambda: f"value {next(values)}\n")
    first = scrape(port)
    second = scrape(port)
    assert sample(second, "value") == sample(first, "value") + 1


def test_other_paths_are_not_found(serve: Serve) -> None:
    port = free_ports(1)[0]
    serve(port, lambda: "value 1\n")
    scrape(port)
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{port}/config")


@pytest.mark.parametrize(("variables", "others"), [({}, True), (inherited_environment({}), False)])
def test_a_local_run_serves_only_this_machine(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], others: bool
) -> None:
    """127.0.0.2 stands for the address by which other machines reach this one."""
    monkeypatch.setenv(metrics_page.HOST_VARIABLE, variables.get(metrics_page.HOST_VARIABLE, ""))
    port = free_ports(1)[0]
    serve(port, lambda: "value 1\n")
    scrape(port)
    with socket.socket() as other:
        assert (other.connect_ex(("127.0.0.2", port)) == 0) is others


def test_a_client_that_disconnects_is_not_logged(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_ports(1)[0]
    serve(port, lambda: "value 1\n")
    scrape(port)
    with socket.create_connection(("127.0.0.1", port)) as rude:
        rude.sendall(b"GET")
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing is a reset
    time.sleep(0.1)
    assert sample(scrape(port), "value") == 1
    assert capfd.readouterr() == ("", "")


def test_a_used_port_is_logged_once_and_served_when_free(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server(metrics_page._Server):
        def server_bind(self) -> None:
            attempts.release()
            super().server_bind()

    attempts = threading.Semaphore(0)
    monkeypatch.setattr(metrics_page, "_Server", Server)
    monkeypatch.setattr(metrics_page, "RETRY_SECONDS", 0.02)
    caplog.set_level(logging.INFO)
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        serve(port, lambda: "value 1\n")
        assert all(attempts.acquire(timeout=60) for _ in range(4))
        complaints = [record.getMessage() for record in caplog.records]
        assert len(complaints) == 1
        assert f"port {port} (Address already in use)" in complaints[0] and "metrics_port" in complaints[0]
    assert sample(scrape(port), "value") == 1
