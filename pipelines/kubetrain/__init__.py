"""kubetrain from Python: start, follow and cancel runs in Kubeflow Pipelines, or run a pipeline on this machine.

Importing this package takes milliseconds: what each name needs is imported when you use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kubetrain_pipelines.extras import missing_extra
from kubetrain_trainer.errors import InvalidSetting, KubetrainError, RunFailed

if TYPE_CHECKING:
    from kubetrain.kubeflow_runs import Run, find_run, runs, submit
    from kubetrain.kubeflow_schedules import Schedule, schedule, schedules
    from kubetrain.local_runs import LocalRun, run
    from kubetrain.status import Stage, Status
    from kubetrain_components.fetch_model.load import load_model
    from kubetrain_trainer.models.load_model import LoadedModel, Prediction

__all__ = [
    "InvalidSetting",
    "KubetrainError",
    "LoadedModel",
    "LocalRun",
    "Prediction",
    "Run",
    "RunFailed",
    "Schedule",
    "Stage",
    "Status",
    "find_run",
    "load_model",
    "run",
    "runs",
    "schedule",
    "schedules",
    "submit",
]

# No module has the name of a function here: importing the module would replace the function.
_NAMES = {
    "kubetrain.kubeflow_runs": ("Run", "find_run", "runs", "submit"),
    "kubetrain.kubeflow_schedules": ("Schedule", "schedule", "schedules"),
    "kubetrain.local_runs": ("LocalRun", "run"),
    "kubetrain.status": ("Stage", "Status"),
    "kubetrain_components.fetch_model.load": ("load_model",),
    "kubetrain_trainer.models.load_model": ("LoadedModel", "Prediction"),
}

if not TYPE_CHECKING:  # a type checker would take any name for a valid one

    def __getattr__(name: str) -> Any:
        module = next((module for module, names in _NAMES.items() if name in names), "")
        if not module:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError as error:
            raise KubetrainError(missing_extra(error)) from error


def __dir__() -> list[str]:
    return __all__
