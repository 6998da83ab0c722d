"""The kinds of trouble that keep a job from running: what users read about each, its timeout and its remedy."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, kw_only=True)
class TroubleTraits:
    words: str
    remedy: str
    timeout_seconds: float | None = None
    """How long it may last before the job fails; None: as long as the stage of the job, because autoscalers create
    nodes, other jobs free quota, and crashes count as restarts."""


class TroubleKind(Enum):
    UNSCHEDULABLE = TroubleTraits(
        words="cannot be scheduled",
        remedy="request less, or change node_selector, tolerations or the nodes",
    )
    IMAGE_PULL = TroubleTraits(
        words="its image cannot be pulled",
        remedy="correct image, or set image_pull_secrets to the secrets that it is pulled with",
        timeout_seconds=120,  # a registry may be down for a moment
    )
    BAD_IMAGE_NAME = TroubleTraits(
        words="its image name is invalid",
        remedy="correct image",
        timeout_seconds=0,
    )
    CONFIGURATION = TroubleTraits(
        words="something that it refers to is missing",
        remedy="create what is missing in this namespace, or correct its name",
        timeout_seconds=60,  # someone may be about to create it
    )
    CRASH_LOOP = TroubleTraits(
        words="it keeps crashing",
        remedy="look at the last lines of its log",
    )
    VOLUME = TroubleTraits(
        words="a volume cannot be mounted",
        remedy="check that what it mounts exists, is bound, and can be mounted on that node",
    )
    INIT_CONTAINER = TroubleTraits(
        words="Pod Security rejects the init container that the operator adds to Workers of a job with a Master",
        remedy="apply deploy/operator, or set min_workers to the value of workers: such a job has no Master",
        timeout_seconds=10,
    )
    POD_SECURITY = TroubleTraits(
        words="Pod Security rejects its pods",
        remedy="host_network, rdma and some volumes need a namespace that enforces a less strict level",
        timeout_seconds=10,
    )
    REFUSED = TroubleTraits(
        words="the cluster rejects its pods",
        remedy="correct what the message names",
        timeout_seconds=10,
    )
    NOT_CREATED = TroubleTraits(
        words="its pods cannot be created",
        remedy="check the cluster's admission webhooks and the training operator",
    )
    QUOTA = TroubleTraits(
        words="the namespace's quota is used up",
        remedy="wait until other jobs have ended, or ask for a larger quota",
    )
    QUEUE = TroubleTraits(
        words="not admitted by the queue",
        remedy="check that the queue exists in this namespace, has room, and manages jobs of this kind",
    )
    NODE = TroubleTraits(
        words="its node does not respond",
        remedy="bring the node back, or delete it from the cluster: until then its pods are not replaced",
    )


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What keeps a job from running, as far as it can be seen from outside."""

    kind: TroubleKind
    subject: str
    """The pod or the object that has it. Two troubles of one kind and subject are the same one."""
    evidence: str

    @property
    def notice(self) -> str:
        """The line to log for the subject as long as the trouble is tolerated."""
        return f"waiting: {self._sentence}"

    @property
    def failure(self) -> str:
        """The reason that the job fails for."""
        return f"{self.subject}: {self._sentence}: {self.kind.value.remedy}"

    @property
    def _sentence(self) -> str:
        return f"{self.kind.value.words} ({self.evidence})"
