"""A training as others see it: scraped by Prometheus' own parser, read by TensorBoard's own reader."""

import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(port: int) -> Samples:
    """What is served there; soon, where the server is only starting."""
    end = time.monotonic() + 60
    while True:
        try:
            return _scrape(port)
        except URLError:
            assert time.monotonic() < end
            time.sleep(0.02)


def _scrape(port: int) -> Samples:
    with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return samples_of(response.read().decode())


def samples_of(page: str) -> Samples:
    return {
        (sample.name.removeprefix("kubetrain_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def sample(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


READ_EVENTS = """
import json, sys
sys.modules["tensorflow"] = None  # TensorBoard's own reader
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"""


def tensorboard_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By tag the values of each step."""
    read = subprocess.run([sys.executable, "-c", READ_EVENTS, folder], check=True, capture_output=True, text=True)
    scalars = json.loads(read.stdout.splitlines()[-1])
    return {tag: [(step, value) for step, value in values] for tag, values in scalars.items()}
