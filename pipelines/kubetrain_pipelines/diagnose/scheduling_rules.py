"""Rules about pods that do not start, are evicted or preempted. Their words are those of a followed job's troubles."""

from kubetrain_components.jobs.kubernetes.pod_end import DISRUPTIONS, FAILURES
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample

ON_A_CLUSTER = "recorded on a cluster"


def of_trouble(name: str, kind: TroubleKind, *texts: str, sample: str, certainty: Certainty = Certainty.CAUSE) -> Rule:
    """Return the rule for a trouble: recognized by the words of a launcher's log, or by those of the cluster."""
    words, remedy = kind.value.words, kind.value.remedy
    return Rule(
        name=name,
        title=f"Waiting: {words}",
        texts=(f": {words} (", *texts),
        remedy=f"{remedy[0].upper()}{remedy[1:]}.",
        certainty=certainty,
        samples=(Sample(sample, "the launcher's log, or an event of the cluster"),),
    )


RULES = (
    of_trouble(
        "volume-in-use",
        TroubleKind.VOLUME_IN_USE,
        "Multi-Attach error for volume",
        sample='Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) train-x-r-454349e4-worker-0',
    ),
    of_trouble(
        "volume",
        TroubleKind.VOLUME,
        "MountVolume.*failed",
        "Unable to attach or mount volumes",
        "Unable to mount volumes for pod",
        "AttachVolume.Attach failed",
        "persistentvolumeclaim * not found",
        "unbound immediate PersistentVolumeClaims",
        sample='worker-0: a volume cannot be mounted (persistentvolumeclaim "nope" not found): check that it exists',
    ),
    of_trouble(
        "unschedulable",
        TroubleKind.UNSCHEDULABLE,
        " nodes are available: ",
        " nodes are unavailable: ",
        sample="Warning  FailedScheduling  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    ),
    of_trouble(
        "image-name",
        TroubleKind.BAD_IMAGE_NAME,
        "InvalidImageName",
        "Failed to apply default image tag",
        sample='Failed to apply default image tag "Upper/Case:1": couldn\'t parse image name',
    ),
    Rule(
        name="pull-limit",
        title="The registry limits how many images are pulled",
        texts=("toomanyrequests",),
        explanation="Docker Hub counts the pulls of an address or an account; nodes without a login share theirs.",
        remedy="Pull from a registry or a mirror of your own, or set imagePullSecrets of pods.pod to an account with a "
        "higher limit. The pull is tried again by itself.",
        samples=(
            Sample(
                "toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating",
                "https://github.com/docker/hub-feedback/issues/2429",
            ),
        ),
    ),
    Rule(
        name="pod-sandbox",
        title="The node cannot connect a pod to the network",
        certainty=Certainty.LIKELY,
        texts=("FailedCreatePodSandBox", "to create pod sandbox: ", "create pod sandbox: rpc error"),
        explanation="Its network plugin or container runtime failed, for example because it has no address left.",
        remedy="Check the network plugin's pod on that node and its log; cordon the node if others work.",
        samples=(
            Sample(
                "Failed create pod sandbox: rpc error: code = Unknown desc = NetworkPlugin cni failed to set up pod",
                "https://github.com/zendesk/samson/pull/3273",
            ),
        ),
    ),
    Rule(
        name="gang",
        title="Waiting: the scheduler has no room for all pods at once",
        texts=("tasks in gang unschedulable",),
        explanation="Volcano starts the pods of a job together or not at all.",
        remedy="Free resources, or lower pods.workers or pods.gpus; `kubectl describe podgroup` says what is missing.",
        after=("unschedulable",),
        samples=(
            Sample(
                "FailedScheduling  volcano  10/6 tasks in gang unschedulable: job is not ready, 10 minAvailable",
                "https://github.com/volcano-sh/volcano/issues/519",
            ),
        ),
    ),
    Rule(
        name="pods-not-ready",
        title="The queue took the job back because its pods did not start in time",
        texts=("Exceeded the PodsReady timeout", "PodsReadyTimeout"),
        explanation="Kueue evicts a job of which not all pods run within its waitForPodsReady timeout.",
        remedy="Look why pods do not start (`kubectl describe pod`): new nodes or a large image may need a "
        "longer timeout in Kueue's configuration.",
        after=("unschedulable", "image-pull", "pull-limit", "volume"),
        samples=(
            Sample(
                "Exceeded the PodsReady timeout podsready-v4pth/prod1",
                "https://github.com/kubernetes-sigs/kueue/issues/3366",
            ),
        ),
    ),
    Rule(
        name="pod-started",
        title="A pod has started",
        certainty=Certainty.FACT,
        texts=("Started container ",),
        overcomes=("unschedulable", "gang", "queue", "volume", "pod-sandbox", "image-pull", "pull-limit"),
    ),
    of_trouble(
        "image-pull",
        TroubleKind.IMAGE_PULL,
        "Failed to pull image",
        "Back-off pulling image",
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        sample='Back-off pulling image "registry.invalid/no/such:1"',
    ),
    of_trouble(
        "init-container",
        TroubleKind.INIT_CONTAINER,
        sample="the job: Pod Security rejects the init container that the operator adds to Workers of a job with a "
        'Master (pods "x" is forbidden: violates PodSecurity "restricted:latest")',
    ),
    of_trouble(
        "pod-security",
        TroubleKind.POD_SECURITY,
        "violates PodSecurity",
        sample='pods "x" is forbidden: violates PodSecurity "restricted:latest": host namespaces (hostNetwork=true)',
    ),
    of_trouble(
        "quota",
        TroubleKind.QUOTA,
        "exceeded quota: ",
        sample='pods "x" is forbidden: exceeded quota: q, requested: cpu=50m, used: cpu=0, limited: cpu=10m',
    ),
    of_trouble(
        "webhook",
        TroubleKind.NOT_CREATED,
        "failed calling webhook",
        sample='Internal error occurred: failed calling webhook "pods.manifests.test": failed to call webhook',
    ),
    of_trouble(
        "rejected",
        TroubleKind.REFUSED,
        "denied the request: ",
        "denied request: ",
        "failed quota: ",
        " usage per Container is ",
        " usage per Pod is ",
        sample='admission webhook "teams" denied request: every pod names its team',
    ),
    of_trouble(
        "missing-reference",
        TroubleKind.CONFIGURATION,
        "CreateContainerConfigError",
        'Error: secret "',
        'Error: configmap "',
        sample='worker-0: something that it refers to is missing (secret "nope" not found): create what is missing',
    ),
    of_trouble(
        "queue-never",
        TroubleKind.NEVER_ADMITTED,
        sample="the job's Workload: the queue will never admit it (Kueue's queue research: couldn't assign flavors)",
    ),
    of_trouble(
        "queue",
        TroubleKind.QUEUE,
        "couldn't assign flavors to pod set",
        sample="waiting: not admitted by the queue (Kueue's queue q)",
    ),
    of_trouble(
        "suspended", TroubleKind.SUSPENDED, sample="waiting: is suspended, but in no queue (spec.suspend is true)"
    ),
    of_trouble(
        "operator",
        TroubleKind.OPERATOR,
        sample="the job: has not been taken up by its operator (this PyTorchJob has no status): check that",
    ),
    of_trouble(
        "scheduler", TroubleKind.SCHEDULER, sample="worker-0: no scheduler has looked at it (volcano): check that"
    ),
    of_trouble(
        "lingering",
        TroubleKind.LINGERING,
        sample="worker-0: a container beside the main one does not end (container istio-proxy): keep it from",
    ),
    of_trouble("deleting", TroubleKind.DELETING, sample="the job: is being deleted, but has finalizers (x/y): check"),
    of_trouble(
        "node",
        TroubleKind.NODE,
        "NodeNotReady",
        sample="master-0: its node does not respond (node2): bring the node back",
    ),
    Rule(
        name="node-pressure",
        title="A node runs out of memory, disk or processes",
        certainty=Certainty.LIKELY,
        texts=("NodeHasMemoryPressure", "NodeHasDiskPressure", "NodeHasPIDPressure"),
        explanation="The node evicts pods until it has enough again.",
        remedy="Free what the node lacks (`kubectl describe node`), or raise the requests of pods.",
        after=("evicted", "disk-full", "pod-memory"),
        samples=(Sample("NodeHasDiskPressure: kubelet has disk pressure", "the conditions of nodes"),),
    ),
    Rule(
        name="preempted",
        title="A pod was preempted",
        texts=(DISRUPTIONS["PreemptionByScheduler"], "Preempted by pod "),
        explanation="The scheduler gave its place to a pod of a higher priority.",
        remedy="Start the run again: it resumes. Set priorityClassName of pods.pod, or choose other nodes by its "
        "nodeSelector.",
        samples=(
            Sample(
                "transfer-0 was preempted by pods of a higher priority: default-scheduler: preempting to accommodate a "
                "higher priority pod",
                ON_A_CLUSTER,
            ),
        ),
    ),
    Rule(
        name="evicted",
        title="A pod was evicted",
        texts=(
            f"-* {FAILURES['Evicted']}: ",
            DISRUPTIONS["EvictionByEvictionAPI"],
            "The node was low on resource: ",
        ),
        explanation="Its node was drained, or ran out of memory or disk; the line says which.",
        remedy="Start the run again: it resumes. If the node ran out of something, raise the request for it.",
        after=("disk-full",),
        samples=(
            Sample(
                "worker-0 was evicted, for example because its node is drained: Eviction API: evicting", ON_A_CLUSTER
            ),
        ),
    ),
    Rule(
        name="node-lost",
        title="A node was lost",
        texts=(
            DISRUPTIONS["DeletionByPodGC"],
            DISRUPTIONS["DeletionByTaintManager"],
            DISRUPTIONS["TerminationByKubelet"],
            FAILURES["NodeShutdown"],
        ),
        explanation="The machine shut down, or the cluster lost contact with it.",
        remedy="Start the run again: it resumes on other nodes. `kubectl get nodes` shows the state.",
        samples=(Sample("worker-1 was lost with its node", "the sentence of the launcher"),),
    ),
    Rule(
        name="deleted",
        title="A pod was deleted",
        texts=("was deleted while it was running",),
        explanation="A person, or a program of the cluster, deleted it.",
        remedy="Start the run again: it resumes. The audit log of the cluster says who deleted it.",
        after=("node-lost", "preempted", "evicted"),
        samples=(Sample("worker-0 was deleted while it was running (after a restart)", ON_A_CLUSTER),),
    ),
    Rule(
        name="init-failed",
        title="An init container failed",
        texts=("did not start: its init container ",),
        explanation="The main container starts only after it.",
        remedy="Read its log: `kubectl logs POD --container NAME`. init-pytorch waits for the first pod's DNS name.",
        samples=(Sample("worker-0 did not start: its init container init-pytorch exited with code 1", ON_A_CLUSTER),),
    ),
    Rule(
        name="deadline",
        title="The deadline passed",
        texts=(f" {FAILURES['DeadlineExceeded']}", "was active on the node longer than the specified deadline"),
        explanation="The job ran longer than it may.",
        remedy="Raise pods.deadline_seconds, then start the run again: it resumes.",
        samples=(Sample("worker-0 exceeded its deadline: Pod was active", "the sentence of the launcher"),),
    ),
    of_trouble(
        "crash-loop",
        TroubleKind.CRASH_LOOP,
        "CrashLoopBackOff",
        "Back-off restarting failed container",
        certainty=Certainty.EFFECT,
        sample="worker-0: it keeps crashing (back-off 40s restarting failed container=pytorch pod=x): see the last",
    ),
)
