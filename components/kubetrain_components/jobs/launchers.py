"""The launchers that run the pods of a training on a cluster: an operator, or Kubernetes alone."""

from enum import StrEnum

from kubetrain_components.jobs.job_kinds import JobKind


class Launcher(StrEnum):
    AUTO = "auto"
    """The first of the others that the cluster has; never Ray, which needs a script that uses it."""
    TRAINING_OPERATOR = "training-operator"
    TRAINER = "trainer"
    JOB = "job"
    RAY = "ray"

    def kind(self, framework: str) -> JobKind:
        """Return the kind of job that trains with this framework; for auto, that of the training operator."""
        return ANY_FRAMEWORK.get(self) or next(kind for kind in JobKind if kind.traits.framework == framework)

    @classmethod
    def of(cls, kind: JobKind) -> "Launcher":
        """Return what runs the pods of a training that is this kind of job."""
        return next((each for each, other in ANY_FRAMEWORK.items() if other is kind), cls.TRAINING_OPERATOR)


ANY_FRAMEWORK = {
    Launcher.TRAINER: JobKind.TRAIN_JOB,
    Launcher.JOB: JobKind.BATCH_JOB,
    Launcher.RAY: JobKind.RAY_JOB,
}
"""The launchers with one kind of job for all frameworks."""
LAUNCHERS = (Launcher.TRAINING_OPERATOR, Launcher.TRAINER, Launcher.JOB)
"""In the order in which auto looks for them."""
ALL_LAUNCHERS = (*LAUNCHERS, Launcher.RAY)
