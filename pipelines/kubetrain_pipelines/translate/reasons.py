"""What kubetrain does instead of a field that has no counterpart, or what the user can do."""

import re
from collections.abc import Iterable

from kubetrain_trainer.settings.config import TrainConfig

COMMANDS = r"(mpi|xgb|paddle|jax)ReplicaSpecs\..*"
"""Pods that run the user's own program."""
REASONS = {
    rf"{COMMANDS}(Probe|lifecycle)": "kubetrain judges a pod by its exit code",
    r"mpiReplicaSpecs\.Worker\..*\.(command|args)$": "Workers wait for mpirun: prepare them in the image, or with "
    "initContainers of pods.pod",
    r"mpiReplicaSpecs\.Worker\..*\.workingDir": "mpirun starts processes in the folder of the Launcher's command",
    rf"{COMMANDS}\.env\[NCCL_TIMEOUT\]": "NCCL does not read it",
    rf"{COMMANDS}\.ports": "pods need no declared ports",
    rf"{COMMANDS}\.volumeMounts": "kubetrain mounts memory at /dev/shm: set pods.shm_size, or mount it elsewhere",
    r"\.sshAuthMountPath$": "the Training Operator needs no SSH, and Trainer mounts the keys at /home/mpiuser/.ssh",
    r"\.mpiImplementation$": "the image needs Open MPI 4",
    r"\.launcherCreationPolicy$": "mpirun starts when all Workers run",
    r"\.Launcher\.replicas$": "a job has one Launcher",
    r"(Probe|lifecycle)": "kubetrain judges a pod by its exit code; its own trainer also reports hanging processes",
    r"\.(command|args|workingDir)$": "set train.entry to your script or command, see docs/own_code.md",
    r"\.env\[(PET_\w+|MASTER_\w+|RANK|LOCAL_RANK|WORLD_SIZE|TF_CONFIG|JOB_COMPLETION_INDEX)\]": "the launcher sets it",
    r"\.env\[NCCL_TIMEOUT\]": "set train.nccl_timeout_seconds",
    r"\.env\[": "it may be a secret, which the file would show to everyone: store it in a Secret and set "
    "pods.secret_env",
    r"\.volumeMounts": "kubetrain mounts the dataset at /data, the output PVC at /output and memory at /dev/shm: "
    "mount it elsewhere",
    r"\.volumes": "nothing mounts it without its mount, which has no counterpart",
    r"\.ports": "pods need no declared ports; rank 0 serves metrics at train.metrics_port",
    r"securityContext": "pods comply with Pod Security restricted; set pods.user, and pods.rdma for locked memory",
    r"\.(hostIPC|hostPID)": "pods comply with Pod Security restricted; set pods.shm_size for shared memory",
    r"\.template\.spec\.restartPolicy": "set pods.restart_policy",
    r"\.restartPolicy": "all pods have one pods.restart_policy: never Always, which also restarts pods that have "
    "succeeded, in an elastic job only OnFailure, and with MPI OnFailure or Never",
    r"\.nodeName": "set nodeSelector of pods.pod",
    r"\.automountServiceAccountToken": "pods get a token exactly if serviceAccountName of pods.pod is set",
    r"\.terminationGracePeriodSeconds": "a pod needs a second or more to save a checkpoint: set pods.grace_seconds",
    r"(nprocPerNode|nProcPerNode|numProcPerNode)": "set pods.processes, one for each GPU",
    r"[rR]dzv|\.standalone": "workers find each other by the c10d rendezvous of worker 0, which needs no server or "
    "ID; to use etcd, set pods.rendezvous",
    r"\.max(Replicas|Nodes)": "Kueue stops a PyTorchJob that grows: set pods.max_workers, and pods.launcher to "
    "trainer or job",
    r"\.activeDeadlineSeconds": "set pods.deadline_seconds",
    r"priority-class$": "set priorityClassName of pods.pod",
    r"\.metrics$": "an autoscaler needs minReplicas, and Kueue stops a PyTorchJob whose number of pods changes",
    r"^spec\.schedulerName": "the pods name their scheduler: set pods.scheduler, unless it is set for a queue",
    r"\.schedulerName": "Kueue starts all pods of a job or none: it needs no gang scheduler",
    r"\.(backoffLimit|maxRestarts|failurePolicy)": "set pods.max_restarts",
    r"\.suspend": "only Kueue suspends a job: set pods.scheduler to kueue and pods.queue",
    r"\.(schedulingPolicy|podGroupPolicy)": "a gang has all pods, or pods.min_workers: set pods.scheduler (volcano, "
    "scheduler-plugins or kueue), and pods.start_seconds as its time limit",
    r"\.cleanPodPolicy": "running pods are deleted when their logs have been read, and ended ones kept",
    r"\.ttlSecondsAfterFinished": "the launcher has to read a finished job first: set pods.ttl_seconds",
    r"\.successPolicy": "a job succeeds if all its pods do and rank 0 has named a complete checkpoint",
    r"\.PS\.": "a run has no parameter servers: train with MultiWorkerMirroredStrategy",
    r"\.Evaluator\.": "the step evaluate_model evaluates the model: name a script of yours as evaluation in "
    "train.entry",
    r"initializer": "the pipeline copies data.uri in the step sync_dataset; choose pretrained weights in model.args",
    r"^metadata\.name$": "the run has a name: pass --name to submit, or --run-id to train",
    r"^metadata\.namespace$": "pods run in the pipeline's namespace: pass --namespace to submit if it is multi-user",
    r"^metadata\.(labels|annotations)": "labels and annotations of pods.pod are those of the pods; the job "
    "has kubetrain's own",
    r"^metadata\.": "the job has kubetrain's own",
}
NO_REASON = "kubetrain has no such setting"
SHORT_NAMES = {"lr": "learning_rate", "wd": "weight_decay"}
"""Usual names of arguments for settings that kubetrain calls otherwise."""
OTHER_MEANING = {"data"}
"""Settings that mean something else than the usual argument: data is a format here, not a path."""
ARGUMENT = re.compile(r"--([A-Za-z][\w-]*)")


def reason_for(path: str) -> str:
    return next((each for pattern, each in REASONS.items() if re.search(pattern, path)), NO_REASON)


def like_settings(command: Iterable[str]) -> list[str]:
    """Return the settings of the training that arguments of a command seem to stand for."""
    arguments = {name.replace("-", "_") for name in ARGUMENT.findall(" ".join(command))}
    wanted = {SHORT_NAMES.get(name, name) for name in arguments} - OTHER_MEANING
    return [TrainConfig.public_name(name) for name in TrainConfig.names() if name in wanted]
