"""What a callback gives to the session. Its library is a stand-in, because the real one takes seconds to import."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_trainer import callbacks, session

ALONE = SimpleNamespace(PartialState=lambda: SimpleNamespace(wait_for_everyone=lambda: None))
TRAINER = "PreTrainedModel TrainerCallback TrainerControl TrainerState TrainingArguments".split()


def test_a_checkpoint_of_transformers_has_only_the_metrics_of_its_own_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", ALONE)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**dict.fromkeys(TRAINER, object)))
    saved: list[tuple[Any, ...]] = []
    monkeypatch.setattr(session, "save", lambda step, _, metrics: saved.append((step, metrics)))
    callback = runpy.run_path(f"{callbacks.__path__[0]}/transformers.py")["SessionCallback"]()

    def at(step: int) -> tuple[Any, ...]:
        return SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(global_step=step), None

    callback.on_save(*at(2))
    callback.on_evaluate(*at(4), metrics={"eval_loss": 0.5})
    callback.on_save(*at(6))
    callback.on_evaluate(*at(8), metrics={"eval_loss": 0.25})
    callback.on_save(*at(8))
    assert saved == [(2, {}), (6, {}), (8, {"loss": 0.25})]
