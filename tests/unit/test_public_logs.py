"""Excerpts of logs from public reports, shortened: each shows its cause, and none is passed over in silence."""

from pathlib import Path

import pytest

from kubetrain_pipelines.diagnose.case import Case
from kubetrain_pipelines.diagnose.diagnosis import Diagnosis, diagnose
from kubetrain_pipelines.diagnose.local_case import read_path
from kubetrain_pipelines.diagnose.rule import Certainty

PULL = 'Warning  Failed  kubelet  Failed to pull image "x/train:1": '
SANDBOX = "Warning  FailedCreatePodSandBox  kubelet  Failed to create pod sandbox: rpc error: code = Unknown desc = "
REPORTS = {
    "NVIDIA/nccl-tests#227": (
        "ibvwrap.c:160 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
        "infiniband-unreachable",
    ),
    "NVIDIA/nccl#2013": (
        "host-01:71:90 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev "
        "mlx_x:1, curr state INIT, next state RTR, local GID index 3",
        "infiniband-unreachable",
    ),
    "NVIDIA/nccl-tests#185": (
        "misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
        "infiniband-unreachable",
    ),
    "NVIDIA/nccl#925": ("NCCL WARN Call to ibv_modify_qp failed with error No such device", "infiniband-unreachable"),
    "uccl-project/uccl#641": ("Failed to modify QP to RTR: Connection timed out", "infiniband-unreachable"),
    "Lightning-AI/lit-llama#380": (
        "n-48:34050:34121 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
        "infiniband-port",
    ),
    "NVIDIA/nccl#230": (
        "c-57:815:864 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error",
        "infiniband-port",
    ),
    "NVIDIA/nccl#1710": (
        "node201:127799:127863 [0] transport/net_ib.cc:101 NCCL WARN NET/IB : mlx5_0:1 Got async event : local access "
        "violation work queue error",
        "infiniband-port",
    ),
    "scitix/sichek#44": (
        "master-0:617:2799 [3] transport/net_ib.cc:2360 NCCL WARN NET/IB: Got completion from peer 172.16.234.184<5> "
        "with status=12 opcode=1 len=5222 vendor err 129 (Send) hca mlx5_26",
        "infiniband-error",
    ),
    "NVIDIA/nccl#1672": (
        "g-128:3485254:3487188 [0] transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'",
        "nvlink-sharp",
    ),
    "NVIDIA/nccl#1788": (
        "node004:27907:27907 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed "
        "in the present state'",
        "nvlink-sharp",
    ),
    "pytorch/pytorch#177472": (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled cuda error, NCCL 2.29.3\n"
        "Last error: \n"
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401",
        "nvlink-sharp",
    ),
    "pytorch/pytorch#35710": (
        "RuntimeError: cuda runtime error (802) : system not yet initialized at /opt/THC/THCGeneral.cpp:50",
        "fabric-manager",
    ),
    "gpustack/gpustack#4154": ("RuntimeError: Error 802: system not yet initialized", "fabric-manager"),
    "jax-ml/jax#34113": ("RuntimeError: cuInit(0) failed: CUDA_ERROR_SYSTEM_NOT_READY", "fabric-manager"),
    "pytorch/pytorch#58155": (
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "gpu-fault",
    ),
    "NVIDIA/nccl-tests#188": (
        "user:16901:16967 [2] misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
        "stray-connection",
    ),
    "NVIDIA/nccl#1612": (
        "[0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer 10.10.1.3<36138>",
        "peer-lost",
    ),
    "NVIDIA/nccl#1029": (
        "w-1:2918:4483 [4] transport/nvls.cc:245 NCCL WARN Cuda failure 'initialization error'",
        "nvlink-sharp",
    ),
    "pytorch/pytorch#105782": (
        "[E socket.cpp:860] [c10d] The client socket has timed out after 900s while trying to connect to (m, 29500).",
        "master-unreachable",
    ),
    "EleutherAI/architecture-objective#26": (
        "2022-11-15 16:03:15.140058: E external/org_tensorflow/tensorflow/core/distributed_runtime/coordination/"
        "coordination_service.cc:954] /job:jax_worker/replica:0/task:37 has been set to ERROR in coordination service: "
        "UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout.",
        "peer-lost",
    ),
    "google/paxml#77": (
        "Additional GRPC error information while calling /tensorflow.CoordinationService/RegisterTask:\n"
        "2024-04-12 23:39:41.656900: E external/xla/xla/pjrt/distributed/client.cc:96] Coordination service agent in "
        "error status: DEADLINE_EXCEEDED: Deadline Exceeded",
        "tasks-missing",
    ),
    "mlcommons/training#272": (
        "2019-05-19 15:08:13.128241: E tensorflow/core/common_runtime/ring_reducer.cc:369] Aborting RingReduce with "
        "Unavailable: Socket closed",
        "peer-lost",
    ),
    "yahoo/TensorFlowOnSpark#607": (
        "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Socket closed",
        "peer-lost",
    ),
    "docker/docs#21908": (
        PULL + "unexpected status code https://registry-1.docker.io/v2/x/manifests/1: 429 Too Many Requests - Server "
        "message: toomanyrequests: You have reached your pull rate limit.",
        "pull-limit",
    ),
    "docker/hub-feedback#2505": (
        PULL + "toomanyrequests: You have reached your unauthenticated pull rate limit.",
        "pull-limit",
    ),
    "kubernetes/minikube#20613": (
        PULL + "pull access denied for x/train, repository does not exist or may require 'docker login': denied",
        "image-pull",
    ),
    "octarinesec/octarine-operator#15": (PULL + "unauthorized: authentication required", "image-pull"),
    "tableau/tableau-server-in-kubernetes#14": (
        PULL + "failed to register layer: Error processing tar file(exit status 1): write /x: no space left on device",
        "disk-full",
    ),
    "kubernetes/kubernetes#94117": (
        "Warning  FailedMount  16m (x4 over 43m)  kubelet  Unable to attach or mount volumes: unmounted "
        "volumes=[workdir], unattached volumes=[workdir]: timed out waiting for the condition",
        "volume",
    ),
    "kubernetes/kubernetes#64653": (
        'Warning  FailedMount  1m  kubelet  Unable to mount volumes for pod "prometheus-global-1": timeout expired '
        "waiting for volumes to attach or mount",
        "volume",
    ),
    "wunderio/csi-rclone#20": (
        'Warning  FailedAttachVolume  3m  attachdetach-controller  AttachVolume.Attach failed for volume "d" : timeout',
        "volume",
    ),
    "projectcalico/cni-plugin#909": (
        SANDBOX + 'networkPlugin cni failed to set up pod "kafka-0_default" network: netplugin failed',
        "pod-sandbox",
    ),
    "awslabs/benchmark-ai#549": (
        SANDBOX + "add cmd: failed to assign an IP address to container",
        "pod-sandbox",
    ),
    "volcano-sh/volcano#2986": (
        "Warning  PodGroupPending  7m  vc-controller-manager  PodGroup default:job-sample unschedule,reason: 1/0 tasks "
        "in gang unschedulable: pod group is not ready, 1 minAvailable",
        "gang",
    ),
    "volcano-sh/volcano#519": (
        "Warning  FailedScheduling  111s  volcano  10/6 tasks in gang unschedulable: job is not ready, 10 minAvailable",
        "gang",
    ),
    "volcano-sh/volcano#4116": (
        "Warning  FailedScheduling  1s  volcano  0/1 nodes are unavailable: 1 Insufficient cpu.",
        "unschedulable",
    ),
    "kubernetes-sigs/kueue#9048": (
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor default",
        "queue",
    ),
    "kubernetes-sigs/kueue#3366": ("Exceeded the PodsReady timeout podsready-v4pth/prod1", "pods-not-ready"),
    "hpcaitech/ColossalAI#3172": (
        "failed (exitcode: -9) local_rank: 0 (pid: 18) of binary: /usr/bin/python\n"
        "Traceback (most recent call last):\n"
        '  File "/usr/bin/torchrun", line 8, in <module>\n'
        "    sys.exit(main())\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "Root Cause (first observed failure):\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 18",
        "killed",
    ),
}


def diagnosis_of(folder: Path, log: str) -> Diagnosis:
    (folder / "pod.log").write_text(log + "\n")
    case = Case()
    read_path(case, folder)
    return diagnose(case)


@pytest.mark.parametrize("report", REPORTS)
def test_the_cause_of_a_public_report_comes_first(report: str, tmp_path: Path) -> None:
    log, rule = REPORTS[report]
    found = diagnosis_of(tmp_path, log)
    assert [cause.rule.name for cause in found.causes][:1] == [rule]
    assert found.exit_code == 1


@pytest.mark.parametrize(
    "log",
    [
        "node:1:2 [3] misc/new.cc:7 NCCL WARN something that no rule knows",
        "Warning  FailedPreStopHook  2s  kubelet  something that no rule knows",
        "2026-11-28 10:00:00.1: E external/local_xla/xla/new.cc:7] something that no rule knows",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ],
)
def test_the_log_of_a_failure_is_not_passed_over_in_silence(log: str, tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, log)
    assert [cause.rule.name for cause in found.causes] == ["unknown-failure"]
    assert found.exit_code == 1


@pytest.mark.parametrize(
    "log",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nBatch size 64 failed with: CUDA out "
        "of memory, trying batch size 32\nepoch 1 loss 0.4\n`Trainer.fit` stopped: `max_epochs=1` reached.",
        "E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:485] Unable to register cuFFT factory: Attempting "
        "to register factory for plugin cuFFT when one has already been registered",
        "Warning  FailedScheduling  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.\n"
        "Normal  Scheduled  Successfully assigned team/train-0 to node1\nNormal  Started  Started container pytorch",
    ],
)
def test_what_later_lines_overcome_proves_nothing(log: str, tmp_path: Path) -> None:
    found = diagnosis_of(tmp_path, log)
    assert {cause.certainty for cause in found.causes} <= {Certainty.OVERCOME}
    assert found.exit_code == 0
