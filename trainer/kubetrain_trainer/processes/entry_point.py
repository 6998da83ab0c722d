"""Startup and failure of the trainers' programs: they parse flags, and report failures in one sentence."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError, Stopped
from kubetrain_trainer.failures import explain, is_mistake, own_line
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.code_folder import enter_code_folder
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import EXIT_CODE, exit_on_sigterm
from kubetrain_trainer.termination import (
    act_before_end,
    clear_termination_message,
    end_process,
    report_failure,
    report_result,
)

SENTENCE_LENGTH = 400
IN_A_GRAPH = "in user code:"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arguments:
    config: TrainConfig
    data_dir: Path
    output: TrainingOutput
    dataset_digest: str
    dataset_files: int = 0
    """Number of files in the dataset version; 0: unknown."""
    latest: Path | None = None
    """Folder of the latest published model, which an evaluation measures too; None: the gate does not compare."""


def run(program: Callable[[], None]) -> None:
    """Run the program. Report in one sentence why it failed (exit code 1), or what it saved when it was stopped.

    Only unknown errors are logged with a traceback.
    """
    enter_code_folder()
    os.umask(0o022)  # later steps read this output as other users
    exit_on_sigterm()
    clear_termination_message()
    for stream in (sys.stdout, sys.stderr):  # a file's name that is not UTF-8 must not hide the error that it is in
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        program()
    except Stopped as stopped:
        report_result(stopped.result)
    except KubetrainError as error:
        _fail(_message_of(error), curable=error.is_curable, avoid_nodes=error.avoid_nodes)
    except SystemExit as ended:
        act_before_end(ended.code if isinstance(ended.code, int) else 1)  # Python does not tell its exit handlers
        raise
    except Exception as error:  # noqa: BLE001 - reported as the termination message
        message = f"{type(error).__name__}: {' '.join(_message_of(error).split())[:SENTENCE_LENGTH]}"
        if known := explain(error):
            log.info(message)
            _fail(str(known), curable=known.is_curable)
        traceback.print_exc()
        _fail(message + own_line(error), curable=not is_mistake(error))
    else:
        return
    end_process(EXIT_CODE)  # outside the handler, because there the error keeps the training's objects alive


def _message_of(error: Exception) -> str:
    """Return what the error says, without the frames that TensorFlow puts before it if it is of a graph's code."""
    message = str(error)
    if not message.startswith(IN_A_GRAPH):
        return message
    parts = [part.strip() for part in message[len(IN_A_GRAPH) :].split("\n\n")]
    own = "\n".join(part for part in parts if not part.startswith('File "')).strip()
    return own.removeprefix(f"{type(error).__name__}: ")


def training_arguments(description: str) -> Arguments:
    parser = _parser(description)
    TrainConfig.add_flags(parser.add_argument_group("settings"))
    parsed = parser.parse_args()
    return _arguments(parsed, TrainConfig.from_flags(parsed))


def evaluation_arguments(description: str) -> Arguments:
    """Parse the flags of an evaluation. Its settings are those of the training that wrote the output."""
    parser = _parser(description)
    parser.add_argument("--latest", type=Path, help="folder of the latest published model, to evaluate it too")
    parsed = parser.parse_args()
    output_store.begin(parsed.output_dir)
    return replace(_arguments(parsed, TrainingOutput(parsed.output_dir).train_config()), latest=parsed.latest)


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the dataset's files (read-only)")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of this run on shared storage")
    parser.add_argument("--dataset-digest", default="", help="digest of the dataset version, recorded in manifests")
    parser.add_argument("--dataset-files", type=int, default=0, help="number of its files, to notice lost ones")
    return parser


def _arguments(parsed: argparse.Namespace, config: TrainConfig) -> Arguments:
    return Arguments(
        config=config,
        data_dir=parsed.data_dir,
        output=TrainingOutput(parsed.output_dir),
        dataset_digest=parsed.dataset_digest,
        dataset_files=parsed.dataset_files,
    )


def _fail(sentence: str, *, curable: bool, avoid_nodes: Sequence[str] = ()) -> None:
    print(f"error: {sentence}", flush=True)
    report_failure(sentence, curable=curable, avoid_nodes=avoid_nodes)
    end_process(1)
