"""Run a command and end the process as the command ended.

Exit codes: 0 done, 1 failed or drifted, 2 bad usage, 3 unknown result, 130 Ctrl-C, 143 SIGTERM.
"""

import os
import sys
import traceback
from pathlib import Path

import click

from kubetrain_pipelines.extras import missing_extra
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

MAX_ERROR = 4000
"""Characters of an error, which may quote a value as long as a file."""


def split_program(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before --, and -- with the user's program and its arguments."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end:]


def run_command(kubetrain: click.Group) -> None:
    """Run a command. If it fails, print the error as one sentence and exit with the code for its kind."""
    sys.stdin = sys.stdin or Path(os.devnull).open()  # noqa: SIM115 - closed by the shell, as with <&-
    own, program = split_program(sys.argv[1:])
    debug = "--debug" in own
    try:
        kubetrain([*(argument for argument in own if argument != "--debug"), *program], standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as interruption:
        from kubetrain_components.interrupts import exit_code_of

        interrupt = interruption.__cause__  # Click turns every KeyboardInterrupt into an Abort
        for failure in getattr(interrupt, "__notes__", ()):
            click.echo(f"error: {failure}", err=True)
        click.echo("stopped", err=True)
        sys.exit(exit_code_of(interrupt))
    except Exception as error:  # noqa: BLE001 - every error ends the command with a sentence
        if debug:
            traceback.print_exc()
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("kubetrain"):
            error = KubetrainError(missing_extra(error))
        if isinstance(error, OSError) and error.strerror:
            used = error.filename or "a file or the output"
            error = KubetrainError(f"cannot use {used} ({error.strerror}): check its permissions and the free space")
        is_expected = isinstance(error, KubetrainError)
        for line in getattr(error, "last_lines", ()):
            click.echo(line, err=True)
        text = str(error) if len(str(error)) <= MAX_ERROR else f"{str(error)[: MAX_ERROR // 2]} … {str(error)[-500:]}"
        click.echo(
            f"error: {text}" if is_expected else f"unexpected {type(error).__name__}: {text} (see --debug)", err=True
        )
        sys.exit(2 if isinstance(error, InvalidSetting) else getattr(error, "exit_code", 1))
