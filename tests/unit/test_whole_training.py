"""What a run leaves behind that is refused before its first step."""

from pathlib import Path

import pytest

from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.failures import TransientFailure
from kubetrain_trainer.loop.train import recorded_run
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig


def start(folder: Path, error: Exception | None = None, rank: int = 0, **settings: object) -> TrainingOutput:
    """Begin the run in the folder, which then fails with the error."""
    output = TrainingOutput(folder)
    config = TrainConfig.from_dict(settings)
    arguments = Arguments(config=config, data_dir=folder, output=output, dataset_digest="d" * 16)
    with recorded_run("pytorch", arguments, ProcessRole(rank=rank, world_size=2)):
        if error:
            raise error
    return output


def refuse(folder: Path, error: Exception, **settings: object) -> None:
    with pytest.raises(type(error), match=str(error)):
        start(folder, error, **settings)


def test_the_id_of_a_refused_run_is_free_for_other_settings(tmp_path: Path) -> None:
    refuse(tmp_path, InvalidSetting("no such layer"), freeze="typo")
    assert start(tmp_path, freeze="stem").train_config().freeze == "stem"


@pytest.mark.parametrize("error", [TransientFailure("lost a peer"), OSError("a bug")])
def test_a_run_that_may_be_started_again_stays(error: Exception, tmp_path: Path) -> None:
    refuse(tmp_path, error, epochs=3)
    refuse(tmp_path, KubetrainError("holds the output of another training"), epochs=4)
    assert TrainingOutput(tmp_path).train_config().epochs == 3, "the refused run does not take the record of the other"


@pytest.mark.parametrize("trained", ["metrics", "checkpoints"])
def test_a_run_that_has_trained_stays(trained: str, tmp_path: Path) -> None:
    output = start(tmp_path, epochs=3)
    getattr(output, trained).mkdir()
    refuse(tmp_path, InvalidSetting("the data changed"), epochs=3)
    assert output.train_config().epochs == 3


def test_only_rank_0_withdraws(tmp_path: Path) -> None:
    output = start(tmp_path, epochs=3)
    refuse(tmp_path, InvalidSetting("only here"), rank=1, epochs=3)
    assert output.train_config().epochs == 3
