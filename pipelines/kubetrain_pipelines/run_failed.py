"""The error of a run that ended without success, here or in Kubeflow Pipelines."""

from kubetrain_trainer.errors import KubetrainError


class RunFailed(KubetrainError):
    """The run ended without success. The message has the cause, if it is known."""
