"""Run the rounds of one scenario. The tools take turns, so other load on the machine affects all of them."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from measure import CommandFailed, Cost, measure
from peers import Download, Tool, environment, write_aws_config
from scenarios import (
    CPU_PER_GIGABYTE,
    CPU_PER_OBJECT,
    CPU_SECONDS,
    MEGABYTES_PER_SECOND,
    OBJECTS_PER_SECOND,
    PEAK_MEGABYTES,
    NotDone,
    Scenario,
    prepare_target,
)


@dataclass
class Outcome:
    """The costs of a tool's rounds; empty if it is not installed or failed."""

    tool: str
    version: str
    scenario: Scenario
    costs: list[Cost] = field(default_factory=list)
    problem: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    """Kubetrain's own report of the last round."""

    @property
    def figures(self) -> dict[str, float]:
        """Return the medians by figure."""
        if self.problem or not self.costs:
            return {}
        wall, cpu = median(each.wall_seconds for each in self.costs), median(each.cpu_seconds for each in self.costs)
        objects, size = self.scenario.objects, self.scenario.bytes
        return {
            OBJECTS_PER_SECOND: objects / wall,
            CPU_PER_OBJECT: 1000 * cpu / objects,
            MEGABYTES_PER_SECOND: size / wall / 1e6,
            CPU_PER_GIGABYTE: cpu / size * 1e9,
            CPU_SECONDS: cpu,
            PEAK_MEGABYTES: median(each.peak_bytes for each in self.costs) / 1e6,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "tool": self.tool,
            "version": self.version,
            "problem": self.problem,
            "medians": self.figures,
            "rounds": [asdict(each) for each in self.costs],
            "report": self.report,
        }


def run_scenario(scenario: Scenario, tools: Sequence[Tool], rounds: int, workspace: Path) -> list[Outcome]:
    outcomes = {each.name: Outcome(each.name, each.version, scenario) for each in tools}
    taking_part = [each for each in tools if each.is_installed and scenario.takes_part(each.name)]
    data, home, target = workspace / "server", workspace / "home", workspace / "target"
    data.mkdir()
    home.mkdir(exist_ok=True)
    try:
        with scenario.serve(data) as url:
            for number in range(1, rounds + 1):
                for tool in taking_part:
                    download = Download(url, target, scenario.in_flight_of(tool.name), scenario.objects, scenario.bytes)
                    _run_once(scenario, tool, download, home, outcomes[tool.name])
                    _say(f"{scenario.name} {number}/{rounds}", outcomes[tool.name])
    finally:
        shutil.rmtree(data, ignore_errors=True)
    return list(outcomes.values())


def _run_once(scenario: Scenario, tool: Tool, download: Download, home: Path, outcome: Outcome) -> None:
    if outcome.problem:
        return
    output = home / "output"
    write_aws_config(home, download.in_flight)
    prepare_target(scenario, download.target)
    os.sync()  # keep earlier writes from slowing down later ones
    try:
        outcome.costs.append(measure(tool.command(download), environment(home, download), output))
        outcome.report = scenario.check(tool.name, download.target, output)
    except (CommandFailed, NotDone) as problem:
        outcome.problem = str(problem)
    finally:
        shutil.rmtree(download.target, ignore_errors=True)


def _say(when: str, outcome: Outcome) -> None:
    last = outcome.costs[-1] if outcome.costs else None
    cost = f"{last.wall_seconds:7.2f} s, CPU {last.cpu_seconds:6.2f} s" if last else ""
    print(f"{when:14} {outcome.tool:24} {outcome.problem or cost}", flush=True)
