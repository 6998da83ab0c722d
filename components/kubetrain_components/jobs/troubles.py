"""The kinds of trouble that keep a job from running: what users read about each, its remedy and its timeout."""

from dataclasses import dataclass
from enum import Enum

JOB = "the job"
"""The subject of a trouble that no pod has, and the beginning of such subjects."""


@dataclass(frozen=True)
class TroubleTraits:
    words: str
    remedy: str
    timeout_seconds: float | None = None
    """Time until the job fails; None: no limit besides that of the job's stage, because autoscalers create nodes, other
    jobs free quota, and crashes count as restarts. Once the job was under way, none has a limit of its own."""
    notice_seconds: float = 1.0
    """Time until the log names it: many troubles go away at once."""
    is_hopeless: bool = False
    """True if waiting does not help: the log names the remedy at once."""


class TroubleKind(Enum):
    UNSCHEDULABLE = TroubleTraits(
        "cannot be scheduled",
        "request less, or change nodeSelector, affinity or tolerations of pods.pod, train.preflight=avoid, or the "
        "nodes",
    )
    SCHEDULER = TroubleTraits(
        "no scheduler has looked at it",
        "check that this scheduler runs, or change schedulerName of pods.pod",
        notice_seconds=30,
    )
    IMAGE_PULL = TroubleTraits(  # a registry may be down for a moment
        "its image cannot be pulled", "correct pods.image, or set imagePullSecrets of pods.pod", timeout_seconds=120
    )
    BAD_IMAGE_NAME = TroubleTraits("its image name is invalid", "correct pods.image", timeout_seconds=0)
    CONFIGURATION = TroubleTraits(  # someone may be about to create a secret
        "something that it refers to is missing",
        "create what is missing in this namespace, or correct its name",
        timeout_seconds=60,
    )
    CRASH_LOOP = TroubleTraits("it keeps crashing", "see the last lines of its log")
    VOLUME = TroubleTraits(
        "a volume cannot be mounted", "check that it exists, is bound, and can be mounted on that node"
    )
    VOLUME_IN_USE = TroubleTraits(
        "waits for pods of another run on another node, which use its volume",
        "wait until they have ended, or use a ReadWriteMany PVC",
    )
    INIT_CONTAINER = TroubleTraits(
        "Pod Security rejects the init container that the operator adds to Workers of a job with a Master",
        "set pods.launcher to job, apply deploy/operator, or set pods.min_workers to the value of pods.workers to have "
        "no Master",
        timeout_seconds=10,
    )
    POD_SECURITY = TroubleTraits(
        "Pod Security rejects its pods",
        "remove pods.host_network, pods.rdma or the rejected volumes, or use a namespace that enforces a less strict "
        "level",
        timeout_seconds=10,
    )
    REFUSED = TroubleTraits("the cluster rejects its pods", "correct what the message names", timeout_seconds=10)
    NOT_CREATED = TroubleTraits(
        "its pods cannot be created", "check the cluster's admission webhooks, and the operator if the job has one"
    )
    QUOTA = TroubleTraits(
        "the namespace's quota is used up", "wait until other jobs have ended, or ask for a larger quota"
    )
    QUEUE = TroubleTraits(
        "not admitted by the queue",
        "check that the queue exists in this namespace, has room, and manages jobs of this kind",
    )
    NEVER_ADMITTED = TroubleTraits(
        "the queue will never admit it",
        "request less, change what the queue refuses, or set another pods.queue",
        notice_seconds=5,
        is_hopeless=True,
    )
    SUSPENDED = TroubleTraits(
        "is suspended, but in no queue",
        "resume it, or set pods.scheduler and pods.queue if your cluster admits jobs from queues only",
    )
    OPERATOR = TroubleTraits(
        "has not been taken up by its operator",
        "check that the operator runs, and that it watches this namespace and kind of job",
        notice_seconds=60,
    )
    LINGERING = TroubleTraits(
        "a container beside the main one does not end",
        "keep it from being injected (annotations and labels of pods.pod), make it a native sidecar, or let it end",
        notice_seconds=10,
    )
    DELETING = TroubleTraits(
        "is being deleted, but has finalizers", "check the controller that they belong to, or remove them"
    )
    NODE = TroubleTraits(
        "its node does not respond",
        "bring the node back, or delete it from the cluster: until then its pods are not replaced",
    )


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A problem that keeps a job from running, as far as it can be seen from outside."""

    kind: TroubleKind
    subject: str
    """The pod or the object that has it. Two troubles of one kind and subject are the same one."""
    evidence: str

    @property
    def is_of_pod(self) -> bool:
        return not self.subject.startswith(JOB)

    @property
    def notice(self) -> str:
        """The line to log for the subject as long as the trouble is tolerated."""
        remedy = f": {self.kind.value.remedy}" if self.kind.value.is_hopeless else ""
        return f"waiting: {self.kind.value.words} ({self.evidence}){remedy}"

    @property
    def late_notice(self) -> str:
        """The same for a pod without which the job runs until it can join."""
        return f"training continues, and this pod joins later: {self.kind.value.words} ({self.evidence})"

    @property
    def failure(self) -> str:
        """The reason for the job's failure, with the remedy."""
        return f"{self.subject}: {self.kind.value.words} ({self.evidence}): {self.kind.value.remedy}"
