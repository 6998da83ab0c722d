"""Rules about memory: of the GPU, of the pod, of /dev/shm."""

from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample
from kubetrain_pipelines.diagnose.tracebacks import PREFIX, explanation, patterns_of, remedy, said

RULES = (
    Rule(
        name="shared-memory",
        title="Shared memory is too small",
        texts=(
            *patterns_of("shared-memory"),
            said("shared-memory"),
            "Error while creating shared memory segment *No space left on device",
            "failed to create shared memory file /dev/shm/nccl-",
            "failed to extend /dev/shm/nccl-",
            "It is possible that dataloader's workers are out of shared memory",
            "This might be caused by insufficient shared memory (shm)",
            "Error while creating shared memory segment /dev/shm/nccl-",
        ),
        explanation="Data loading processes pass batches through /dev/shm, and so does NCCL between GPUs of a node.",
        remedy="Set pods.shm_size, such as --set pods.shm_size=16Gi: it counts as memory, so raise pods.memory as "
        "much. Outside of kubetrain, mount an emptyDir of medium Memory at /dev/shm. Or lower train.loader_workers.",
        samples=(
            Sample(
                "RuntimeError: unable to allocate shared memory(shm) for file </torch_27170_1539129087_0>: "
                "No space left on device (28)",
                "provoked by tests: a data loader with a /dev/shm of 128 kB",
            ),
            Sample(
                "RuntimeError: DataLoader worker (pid 18) is killed by signal: Bus error. It is possible that "
                "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
                "torch/utils/data/_utils/signal_handling.py and DataLoader.cpp of PyTorch 2.15",
            ),
            Sample(
                "node1:71:92 [0] include/shm.h:48 NCCL WARN Error while creating shared memory segment "
                "/dev/shm/nccl-VXzHpz (size 9637888), error: No space left on device (28)",
                "libnccl 2 of PyTorch 2.15, which has this format",
            ),
        ),
    ),
    Rule(
        name="smaller-batch",
        title="A smaller batch is tried",
        certainty=Certainty.FACT,
        texts=("trying batch size ",),
        overcomes=("gpu-memory",),
    ),
    Rule(
        name="gpu-memory",
        title="The memory of a GPU ran out",
        texts=(
            "CUDA out of memory",
            "Cuda failure 2 'out of memory'",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "CUDNN_STATUS_ALLOC_FAILED",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "OOM when allocating tensor *GPU:",
        ),
        explanation="The model, its optimizer and a batch do not fit into the memory of the GPU.",
        remedy=remedy("out-of-memory"),
        samples=(
            Sample(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                "79.11 GiB of which 1.35 GiB is free.",
                "CUDACachingAllocator.cpp of PyTorch 2.15",
            ),
            Sample(
                "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with "
                "shape[64,512,56,56] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator "
                "GPU_0_bfc",
                "the message of TensorFlow 2.21",
            ),
        ),
    ),
    Rule(
        name="pod-memory",
        title="A pod exceeded its memory limit",
        texts=(
            "ran out of memory (limit ",
            "ran out of memory: raise pods.memory",
            "OOMKilled",
            "Memory cgroup out of memory",
            "Out of memory: Killed process",
            "oom-kill:constraint",
        ),
        explanation="The kernel killed a process because the pod's memory limit, or the node's memory, was used up.",
        remedy="Raise pods.memory, or lower train.batch_size, train.loader_workers or pods.shm_size, which counts as "
        "memory.",
        samples=(
            Sample(
                "launch_training failed: worker-0 ran out of memory (limit 64Mi): raise pods.memory, or lower "
                "train.batch_size or train.loader_workers (after 3 restarts)",
                "recorded on a cluster",
            ),
            Sample(
                "Memory cgroup out of memory: Killed process 4213 (python) total-vm:18220264kB, anon-rss:8388212kB",
                "mm/oom_kill.c of Linux",
            ),
        ),
    ),
    Rule(
        name="bus-error",
        title="A process lost memory that it had mapped, most often because shared memory is full",
        certainty=Certainty.LIKELY,
        texts=("Signal 7 (SIGBUS) received by PID", "Bus error"),
        explanation="A page of /dev/shm, or of a file that another process cut short, could not be provided.",
        remedy="Set pods.shm_size, such as --set pods.shm_size=16Gi: it counts as memory, so raise pods.memory as "
        "much.",
        after=("shared-memory",),
        samples=(
            Sample("  traceback : Signal 7 (SIGBUS) received by PID 27344", "torchrun of PyTorch 2.15"),
            Sample("Bus error (core dumped)", "bash"),
        ),
    ),
    Rule(
        name="loader-exited",  # before loader-killed, whose texts match its line too
        title="A data loading process ended by itself",
        texts=("DataLoader worker (pid*) exited unexpectedly with exit code", said("loader-exited")),
        explanation=explanation("loader-exited"),
        remedy=remedy("loader-exited"),
        after=("out-of-memory", "shared-memory"),
        samples=(
            Sample(
                "RuntimeError: DataLoader worker (pid 7) exited unexpectedly with exit code 1. Details are lost due to "
                "multiprocessing. Rerunning with num_workers=0 may give better error trace.",
                "provoked by tests: a data loading process that ends itself",
            ),
        ),
    ),
    Rule(
        name="loader-killed",
        title="A data loading process was killed",
        texts=(
            "killed by signal: Killed",
            "DataLoader worker (pid*) exited unexpectedly",
            said("loader-killed"),
        ),
        explanation=explanation("loader-killed"),
        remedy=remedy("loader-killed"),
        after=("pod-memory", "shared-memory", "loader-exited"),
        samples=(
            Sample(
                "RuntimeError: DataLoader worker (pid(s) 27307) exited unexpectedly",
                "provoked by tests: a killed data loading process",
            ),
        ),
    ),
    Rule(
        name="out-of-memory",
        title="Memory ran out",
        texts=(
            " MemoryError",
            "MemoryError: ",
            *(item for item in patterns_of("out-of-memory") if not item.endswith("MemoryError")),
            said("out-of-memory"),
        ),
        explanation="An allocation failed in a process.",
        remedy=remedy("out-of-memory"),
        after=("gpu-memory",),
        samples=(
            Sample(
                "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 1677721600 bytes. Error code 12 (Cannot allocate memory)",
                "provoked by tests: an allocation above the process's limit",
            ),
            Sample(
                "error: out of memory in the first step, with train.batch_size=8: lower train.batch_size, raise "
                "train.gradient_accumulation, set train.precision=bf16, or give each pod more memory (or a larger GPU)",
                "provoked by tests: a training that allocates too much",
            ),
        ),
    ),
    Rule(
        name="killed",
        title="A process was killed, probably because memory ran out",
        certainty=Certainty.LIKELY,
        texts=(
            "Signal 9 (SIGKILL) received by PID",
            "failed (exitcode: -9)",
            "was killed by SIGKILL (exit code 137)",
            "ended with exit code 137",
            "Killed",
        ),
        pattern=r"Signal 9 \(SIGKILL\) received by PID|failed \(exitcode: -9\)|was killed by SIGKILL \(exit code 137\)"
        rf"|ended with exit code 137|^{PREFIX}(?:\S+: line \d+: +\d+ )?Killed\b",
        explanation="Nothing says who killed it. Most often it is the kernel, when memory runs out.",
        remedy="Look for the reason OOMKilled in `kubectl describe pod`, or at the node's `dmesg`. Raise pods.memory, "
        "or lower train.batch_size or train.loader_workers.",
        after=("pod-memory", "shared-memory", "preempted", "evicted", "node-lost"),
        samples=(
            Sample(
                "  traceback : Signal 9 (SIGKILL) received by PID 27344",
                "provoked by tests: a killed rank under torchrun",
            ),
        ),
    ),
)
