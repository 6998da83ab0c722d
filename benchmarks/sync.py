"""Compare `kubetrain sync` with its peers, side by side on this machine.

python benchmarks/sync.py [small] [crc] [large] [large-crc] [listing] [latency] [mixed]
    [late-body] [--rounds 3] [--json FILE]
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bars import Verdict, judge
from peers import all_tools
from rounds import Outcome, run_scenario
from scenarios import SHARD_BYTES, Options, all_scenarios
from table import notes, results_table, verdicts_table

ROOT = Path(__file__).parents[1]
NAMES = ("small", "crc", "large", "large-crc", "listing", "latency", "mixed", "late-body")


def main() -> None:
    arguments = parse_arguments()
    options = Options(
        arguments.peers, arguments.objects, arguments.listed_objects, arguments.shard_mib << 20, arguments.checksum
    )
    known = all_scenarios(options)
    scenarios = [known[name] for name in NAMES if name in (arguments.scenarios or NAMES)]
    # Behave as on Ctrl-C, so servers stop and folders are removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kubetrain-benchmark-", dir=arguments.directory) as workspace:
        tools = all_tools(arguments.peers)
        for scenario in scenarios:
            outcomes += run_scenario(scenario, tools, arguments.rounds, Path(workspace))
    verdicts = judge(outcomes)
    print("", describe_machine(), results_table(outcomes, scenarios), verdicts_table(verdicts, scenarios), sep="\n\n")
    print("", *notes(outcomes), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(outcomes, verdicts), indent=2) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="kubetrain sync against its peers.")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"any of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--objects", type=int, help="number of small objects (default: 5,000)")
    parser.add_argument("--listed-objects", type=int, help="number of unchanged objects (default: a million)")
    parser.add_argument("--shard-mib", type=int, default=SHARD_BYTES >> 20, help="size of a large object")
    parser.add_argument(
        "--checksum", choices=["crc64nvme", "crc32"], default="crc64nvme", help="checksum that the stub offers"
    )
    parser.add_argument(
        "--peers", type=Path, default=ROOT / ".venv-benchmark" / "bin", help="folder with the peers' programs"
    )
    parser.add_argument("--directory", type=Path, help="folder for data (default: the temporary folder)")
    parser.add_argument("--json", type=Path, help="file for the results of every round")
    arguments = parser.parse_args()
    unknown = set(arguments.scenarios) - set(NAMES)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    return arguments


def describe_machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit()}, {cores} cores shared with the server, {platform.machine()}"
    )


def commit() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    answered = subprocess.run(asked, capture_output=True, text=True, check=False)
    return answered.stdout.strip() or "unknown"


def as_json(outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "machine": describe_machine(),
        "python": platform.python_version(),
        "measurements": [each.as_json() for each in outcomes],
        "bars": [{**asdict(each.bar), "measured": each.measured, "is_met": each.is_met} for each in verdicts],
    }


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
