"""The callback of transformers in a session, with the real Trainer in a process of its own."""

import json
from pathlib import Path

import pytest

from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from support.process_groups import start_python

SCRIPT = """
import torch
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from kubetrain_trainer import session
from kubetrain_trainer.callbacks.transformers import SessionCallback

class Config(PretrainedConfig):
    model_type = "tiny"

class Tiny(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layer = torch.nn.Linear(2, 2)
        self.post_init()

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

samples = [{"x": torch.ones(2), "labels": index % 2} for index in range(32)]
arguments = TrainingArguments(
    "trainer", num_train_epochs=1, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=4, save_steps=2,
    report_to="none", disable_tqdm=True, use_cpu=True,
)
trainer = Trainer(
    Tiny(Config()), arguments, train_dataset=samples, eval_dataset=samples, callbacks=[SessionCallback()]
)
trainer.train()
session.finish(trainer.save_model)
"""


@pytest.mark.slow
def test_a_checkpoint_has_only_the_metrics_of_its_own_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    training = start_python(
        *("-m", "kubetrain_trainer.pytorch_ddp.own_code", "--data-dir", "/data", "--output-dir", tmp_path / "run"),
        *("--metrics-port", "0", "--keep-checkpoints", "9", "--entry", json.dumps({"script": "train.py"})),
        cwd=tmp_path,
    )
    log, _ = training.communicate(timeout=120)
    assert training.returncode == 0, log
    saved = complete_checkpoints(tmp_path / "run" / "checkpoints")
    assert [(each.step, each.is_validated) for each in saved] == [(2, False), (4, True), (6, False), (8, True)]
