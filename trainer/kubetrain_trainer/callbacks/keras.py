"""Keras in a session: Model.fit saves, resumes, reports and stops as kubetrain's trainers do.

    callback = SessionCallback()
    model.fit(data, epochs=9, initial_epoch=callback.resume(model), validation_data=val, callbacks=[callback])
    session.finish(lambda folder: model.save(folder / "model.keras"), model.evaluate(test, return_dict=True))

Model.fit cannot begin within an epoch: a training that had to stop there begins with that epoch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from kubetrain_trainer import session
from kubetrain_trainer.own_code import own_task

WEIGHTS, EPOCH = "state.weights.h5", "epoch"


class SessionCallback(keras.callbacks.Callback):
    """Saves after each epoch, and within one if the training has to stop."""

    def __init__(self, log_every: int = 10) -> None:
        super().__init__()
        self._log_every = log_every
        self._epoch = 0

    def resume(self, model: keras.Model) -> int:
        """Load the newest checkpoint into the compiled model, and return the epoch to begin with."""
        own_task.check_built("the model", model)
        session.use(model.distribute_strategy)
        checkpoint = session.resume()
        if checkpoint is None:
            return 0
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)  # otherwise its state would not be loaded
        model.load_weights(checkpoint.path / WEIGHTS)
        return int((checkpoint.path / EPOCH).read_text())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any]) -> None:
        if (batch + 1) % self._log_every == 0:
            session.log(self._step, epoch=self._epoch, **logs)
        if session.should_stop():
            self._save({})

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:
        self._epoch = epoch + 1
        session.log(self._step, epoch=self._epoch, **logs)
        self._save({name.removeprefix("val_"): value for name, value in logs.items() if name.startswith("val_")})

    @property
    def _step(self) -> int:
        return int(self.model.optimizer.iterations.numpy())

    def _save(self, metrics: Mapping[str, Any]) -> None:
        session.save(self._step, self._write, metrics)

    def _write(self, folder: Path) -> None:
        self.model.save_weights(folder / WEIGHTS)
        (folder / EPOCH).write_text(str(self._epoch))
