"""The entry point of the `kubetrain` command, which names a missing extra. It needs only the standard library."""

import sys

from kubetrain_pipelines.extras import missing_extra


def main() -> None:
    try:
        from kubetrain_pipelines.cli.main import main as run_command
    except ModuleNotFoundError as error:
        sys.exit(f"error: {missing_extra(error)}")
    run_command()
