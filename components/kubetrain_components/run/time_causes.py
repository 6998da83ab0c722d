"""What the time of a training is spent on, in the order of reports, and what shortens it."""

from dataclasses import dataclass

from kubetrain_trainer.own_time import SHORTER_WAITS
from kubetrain_trainer.time_spent import (
    CHECKPOINT,
    DATA_WAIT,
    END,
    REPEATED,
    START,
    STRAGGLER,
    TRAINING,
    VALIDATION,
)

QUEUE, IMAGE, PROGRAM, RESTART, PREEMPTION, UNKNOWN = "queue", "image", "program", "restart", "preemption", "unknown"


@dataclass(frozen=True)
class Cause:
    meaning: str
    remedy: str = ""
    is_work: bool = False


CAUSES = {
    QUEUE: Cause(
        "waiting in a queue or for nodes",
        "request fewer workers or gpus, or set another queue or priority_class",
    ),
    IMAGE: Cause(
        "pulling images and starting containers", "use a smaller image, and leave image_pull_policy at IfNotPresent"
    ),
    START: Cause("starting the program, until its first step", "if compile is set, leave it out of short trainings"),
    TRAINING: Cause("training steps", is_work=True),
    PROGRAM: Cause("running your program", is_work=True),
    DATA_WAIT: Cause("waiting for data", SHORTER_WAITS),
    STRAGGLER: Cause("waiting for a process that computes slowly", "see the log for its node, and replace that node"),
    CHECKPOINT: Cause("waiting for checkpoints", "raise checkpoint_every"),
    VALIDATION: Cause("validation", "raise validate_every"),
    REPEATED: Cause("steps repeated after a restart", "lower checkpoint_every"),
    RESTART: Cause("restarts after failures", "see the log for their causes"),
    PREEMPTION: Cause("preemptions and evictions", "set priority_class, or leave spot empty"),
    END: Cause("writing the model and ending the pods"),
    UNKNOWN: Cause("unknown"),
}
