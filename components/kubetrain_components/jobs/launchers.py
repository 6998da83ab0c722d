"""What runs the pods of a training on a cluster: one of two operators, or Kubernetes alone."""

from enum import StrEnum

from kubetrain_components.jobs.job_kinds import JobKind


class Launcher(StrEnum):
    AUTO = "auto"
    """The first of the others that the cluster has."""
    TRAINING_OPERATOR = "training-operator"
    TRAINER = "trainer"
    JOB = "job"

    def kind(self, framework: str) -> JobKind:
        """Return the kind of job that trains with this framework; for auto, that of the training operator."""
        match self:
            case Launcher.TRAINER:
                return JobKind.TRAIN_JOB
            case Launcher.JOB:
                return JobKind.BATCH_JOB
            case Launcher.AUTO | Launcher.TRAINING_OPERATOR:
                return next(kind for kind in JobKind if kind.traits.framework == framework)


LAUNCHERS = (Launcher.TRAINING_OPERATOR, Launcher.TRAINER, Launcher.JOB)
"""In the order in which auto looks for them."""
