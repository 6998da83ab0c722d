"""Hugging Face's Trainer in a session: train() saves, resumes, reports and stops as kubetrain's trainers do.

    arguments = TrainingArguments(output_dir=f"{os.environ['KUBETRAIN_OUTPUT']}/trainer", save_total_limit=1)
    callback = SessionCallback()
    trainer = Trainer(model, arguments, train_dataset=…, eval_dataset=…, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume())
    session.finish(trainer.save_model, {"accuracy": trainer.evaluate()["eval_accuracy"]})

The output folder has to be one that all pods share.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from kubetrain_trainer import session


class SessionCallback(TrainerCallback):
    """Keeps the checkpoints that the trainer saves, and lets it save another one when the training has to stop."""

    def __init__(self) -> None:
        self._resumed: Path | None = None
        self._evaluation: tuple[int, dict[str, float]] = (-1, {})
        """The step of the newest evaluation, and its metrics."""

    def resume(self) -> str | None:
        """Return the newest checkpoint for train(), the same in every process, or None at the beginning of a training.

        Call it when there are TrainingArguments, by which the processes meet.
        """
        checkpoint = session.resume()
        self._resumed = checkpoint.path if checkpoint else None
        return str(checkpoint.path) if checkpoint else None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any, **_: Any
    ) -> None:
        """Load the weights again, because Trainer leaves out those that save_pretrained() renames, as with ViT."""
        if self._resumed and isinstance(model, PreTrainedModel) and not (args.fsdp or args.deepspeed):
            model.load_state_dict(type(model).from_pretrained(self._resumed).state_dict())

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any], **_: Any
    ) -> None:
        session.log(state.global_step, **_numbers(logs))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if session.should_stop():
            control.should_save = True

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: dict[str, Any], **_: Any
    ) -> None:
        measured = {name.removeprefix("eval_"): value for name, value in _numbers(metrics).items()}
        self._evaluation = state.global_step, measured

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        PartialState().wait_for_everyone()  # each process has written its random state
        saved = Path(args.output_dir, f"checkpoint-{state.global_step}")
        session.save(state.global_step, lambda folder: _copy(saved, folder), self._metrics_of(state.global_step))

    def _metrics_of(self, step: int) -> dict[str, float]:
        evaluated, metrics = self._evaluation
        return metrics if evaluated == step else {}


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    """Copy a file, without its bytes if the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
