"""How every program of the trainers starts and how it fails: flags in, one sentence of last words out."""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import KubetrainError, Stopped
from kubetrain_trainer.failures import in_words
from kubetrain_trainer.stop_signal import EXIT_CODE, end_when_asked
from kubetrain_trainer.termination import end_process, forget_last_words, report_failure, report_result
from kubetrain_trainer.training_output import TrainingOutput

SENTENCE_LENGTH = 400
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    config: TrainConfig
    data_dir: Path
    output: TrainingOutput
    dataset_digest: str


def run(program: Callable[[], None]) -> None:
    """Run the program, and say why in one sentence where it fails (exit code 1) or what it saved where it was stopped.

    The traceback of an unforeseen error goes to the log; one that is known needs none.
    """
    os.umask(0o022)  # later steps read what this writes, as other users
    end_when_asked()
    forget_last_words()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        program()
    except Stopped as stopped:
        report_result(stopped.result)
    except KubetrainError as error:
        _fail(str(error), curable=error.is_curable)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this process's last words
        own_words = f"{type(error).__name__}: {' '.join(str(error).split())[:SENTENCE_LENGTH]}"
        if known := in_words(error):
            log.info(own_words)
            _fail(str(known), curable=known.is_curable)
        traceback.print_exc()
        _fail(own_words, curable=True)
    else:
        return
    end_process(EXIT_CODE)  # from here, where all that the training held is let go


def training_arguments(description: str) -> Arguments:
    parser = _parser(description)
    TrainConfig.add_flags(parser.add_argument_group("settings"))
    parsed = parser.parse_args()
    return _arguments(parsed, TrainConfig.from_flags(parsed))


def evaluation_arguments(description: str) -> Arguments:
    """The settings are those of the training that wrote the output."""
    parsed = _parser(description).parse_args()
    return _arguments(parsed, TrainingOutput(parsed.output_dir).train_config())


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--data-dir", type=Path, required=True, help="the dataset version's files, read-only")
    parser.add_argument("--output-dir", type=Path, required=True, help="this run's folder on shared storage")
    parser.add_argument("--dataset-digest", default="", help="what the dataset version is, for the manifests")
    return parser


def _arguments(parsed: argparse.Namespace, config: TrainConfig) -> Arguments:
    return Arguments(
        config=config,
        data_dir=parsed.data_dir,
        output=TrainingOutput(parsed.output_dir),
        dataset_digest=parsed.dataset_digest,
    )


def _fail(sentence: str, *, curable: bool) -> None:
    print(f"error: {sentence}", flush=True)
    report_failure(sentence, curable=curable)
    end_process(1)
