"""The code that runs in the training pods, and what your own code imports from it.

Your code needs no other module but the callbacks. What a name needs is imported when you use the name.

Each framework has its own folder. All others but `callbacks` import only the standard library: they are the contract
between the trainers and the components.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubetrain_trainer.models.load_model import LoadedModel, Prediction, load_model
    from kubetrain_trainer.own_code import session
    from kubetrain_trainer.processes.process_role import torchrun_role
    from kubetrain_trainer.pytorch_ddp.task import Step, Task
    from kubetrain_trainer.settings.config import TrainConfig
    from kubetrain_trainer.tensorflow_multiworker.task import KerasTask

__all__ = [
    "KerasTask",
    "LoadedModel",
    "Prediction",
    "Step",
    "Task",
    "TrainConfig",
    "load_model",
    "session",
    "torchrun_role",
]

_NAMES = {
    "settings.config": ("TrainConfig",),
    "models.load_model": ("LoadedModel", "Prediction", "load_model"),
    "processes.process_role": ("torchrun_role",),
    "pytorch_ddp.task": ("Step", "Task"),
    "tensorflow_multiworker.task": ("KerasTask",),
}

if not TYPE_CHECKING:  # a type checker would take any name for a valid one

    def __getattr__(name: str) -> Any:
        if name == "session":
            return import_module(f"{__name__}.own_code.session")
        module = next((module for module, names in _NAMES.items() if name in names), "")
        if not module:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
