"""Rules about the training itself: numbers, data and GPUs."""

from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample
from kubetrain_pipelines.diagnose.tracebacks import PREFIX, explanation, patterns_of, remedy, said
from kubetrain_trainer.loop.recent_steps import REMEDY as NAN_REMEDY


def of_model(name: str, title: str, sample: Sample) -> Rule:
    """Return the rule for a failure of a model that the trainers explain."""
    texts = (*patterns_of(name), said(name))
    return Rule(
        name=name,
        title=title,
        texts=texts,
        explanation=explanation(name),
        remedy=remedy(name),
        samples=(sample,),
    )


RULES = (
    Rule(
        name="driver",
        title="The GPU driver does not fit the image",
        texts=(
            "CUDA driver version is insufficient for CUDA runtime version",
            "RuntimeError: *The NVIDIA driver on your system is too old",
            "Insufficient driver: ",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "Driver/library version mismatch",
        ),
        explanation="The node's driver is older than the CUDA of the image, or was updated without a restart.",
        remedy="Update the driver of the node (`nvidia-smi` shows it), restart the node after an update, or use an "
        "image with an older CUDA.",
        samples=(
            Sample(
                "vm:28061:28061 [0] init.cc:2570 (ncclCommInitRank) NCCL WARN Cuda failure 'CUDA driver version is "
                "insufficient for CUDA runtime version'",
                "provoked by tests: NCCL without a driver",
            ),
            Sample(
                "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
                "torch/cuda of PyTorch 2.15",
            ),
        ),
    ),
    Rule(
        name="no-gpu",
        title="The process has no GPU",
        texts=(
            "RuntimeError: No CUDA GPUs are available",
            "RuntimeError: Found no NVIDIA driver on your system",
            "CUDA error: no CUDA-capable device is detected",
        ),
        explanation="The program asks for a GPU, and its pod has none.",
        remedy="Set pods.gpus, and check that nodes advertise them (`kubectl describe node`).",
        samples=(Sample("RuntimeError: No CUDA GPUs are available", "torch/cuda of PyTorch 2.15"),),
    ),
    Rule(
        name="old-gpu",
        title="The image has no code for this GPU",
        texts=("no kernel image is available for execution",),
        explanation="PyTorch was built without the architecture of this GPU, which is older or newer.",
        remedy="Use an image whose torch.cuda.get_arch_list() has the GPU's, or choose nodes with other GPUs.",
        samples=(
            Sample(
                "RuntimeError: CUDA error: no kernel image is available for execution on the device", "PyTorch 2.15"
            ),
        ),
    ),
    Rule(
        name="shared-gpu",
        title="Two processes use the same GPU",
        texts=("Duplicate GPU detected : rank ",),
        explanation="NCCL needs a GPU of its own for each process.",
        remedy="Start as many processes as the pod has GPUs (pods.processes), and let each choose its own: "
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])).",
        samples=(
            Sample(
                "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 4000",
                "libnccl 2 of PyTorch 2.15, which has this format",
            ),
        ),
    ),
    Rule(
        name="device-assert",
        title="An index was out of range on the GPU",
        texts=("device-side assert triggered",),
        explanation="Most often a label is outside of the classes, or a token outside of the vocabulary.",
        remedy="Compare labels and tokens with the sizes of the model. CUDA_LAUNCH_BLOCKING=1 in pods.env, or a run on "
        "the CPU, shows the line.",
        samples=(Sample("RuntimeError: CUDA error: device-side assert triggered", "PyTorch 2.15"),),
    ),
    Rule(
        name="gpu-fault",
        title="A GPU failed",
        texts=(
            "NVRM: Xid (",
            "uncorrectable ECC error",
            "uncorrectable NVLink error",
            "GPU has fallen off the bus",
            "CUDA error: unspecified launch failure",
            "CUDA error: an illegal memory access",
        ),
        explanation="The hardware has an error, or a kernel accessed memory that it does not own.",
        remedy="Check the node with `nvidia-smi -q -d ECC` and `dmesg | grep Xid`, and cordon it if the GPU is at "
        "fault. If every node fails alike, look for the kernel with CUDA_LAUNCH_BLOCKING=1.",
        samples=(
            Sample("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "the message of CUDA"),
        ),
    ),
    Rule(
        name="waits",
        title="A process waited for one that hangs",
        certainty=Certainty.EFFECT,
        texts=("hangs: *: look for another process that hangs",),
        explanation="It timed out in an operation in which all processes take part.",
        remedy="Look for the process that hangs elsewhere: its log names the line. Pass the logs of all pods.",
        samples=(
            Sample(
                "error: rank 0 hangs: step 7 did not end within 5 s (train.nccl_timeout_seconds); it is in wait "
                "(distributed/distributed_c10d.py:4181), where processes wait for each other: look for another process "
                "that hangs, all stacks are in the log",
                "provoked by tests: a process beside one that hangs",
            ),
        ),
    ),
    Rule(
        name="hang",
        title="A process hung",
        texts=("error: *rank * hangs: ",),
        explanation="A step, a batch or a save did not end within its timeout; the line says where the process was.",
        remedy="If the place is slow rather than stuck, raise train.nccl_timeout_seconds. If it reads data, check the "
        "storage. All stacks are in the log before this line.",
        samples=(
            Sample(
                "error: rank 1 hangs: step 7 did not end within 5 s (train.nccl_timeout_seconds); it is in stand_still "
                "(hang/own.py:18), all stacks are in the log",
                "provoked by tests: a process that sleeps in its loss",
            ),
        ),
    ),
    Rule(
        name="overflow",
        title="A loss or a gradient became infinite",
        texts=(
            "error: *the loss of rank * is inf at step",
            "error: *the gradient is inf",
            "error: *the loss of rank * is -inf at step",
        ),
        explanation="Numbers exceeded what the precision can hold; fp16 ends at 65,504.",
        remedy=f"{NAN_REMEDY[0].upper()}{NAN_REMEDY[1:]}. With fp16, bf16 has the range of fp32.",
        samples=(
            Sample(
                "error: the loss of rank 0 is inf at step 1, with a learning rate of 0.025: most often",
                "provoked by tests: a loss that overflows",
            ),
        ),
    ),
    Rule(
        name="nan",
        title="A loss or a gradient became NaN",
        texts=(
            "error: *the loss of rank * is nan at step",
            "error: *the gradient is nan",
            "error: *the validation loss is nan",
        ),
        explanation="A number is undefined, and would make every weight undefined.",
        remedy=f"{NAN_REMEDY[0].upper()}{NAN_REMEDY[1:]}.",
        samples=(
            Sample(
                "error: the loss of rank 0 and 1 is nan at step 1, with a learning rate of 0.025: most often",
                "provoked by tests: samples with NaN",
            ),
        ),
    ),
    Rule(
        name="nan-seen",
        title="The log shows losses of NaN",
        certainty=Certainty.LIKELY,
        texts=(" loss=nan", "'loss': nan", "loss: nan", "Loss nan"),
        pattern=r"(?: loss=|'loss': |loss: |Loss )nan\b",
        explanation="The model no longer learns.",
        remedy=f"{NAN_REMEDY[0].upper()}{NAN_REMEDY[1:]}.",
        after=("nan", "overflow"),
        samples=(Sample("100/100 - 2s - loss: nan - accuracy: 0.1", "the progress line of Keras"),),
    ),
    of_model(
        "unused-parameter",
        "A parameter took no part in the loss",
        Sample(
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.",
            "provoked by tests: a model with an unused layer",
        ),
    ),
    of_model(
        "changed-graph",
        "A step computed other operations than the first",
        Sample("RuntimeError: Your training graph has changed in this iteration, e.g., one parameter", "PyTorch 2.15"),
    ),
    of_model(
        "memory-format",
        "view() does not fit the memory format",
        Sample(
            "RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension "
            "spans across two contiguous subspaces).",
            "PyTorch 2.15",
        ),
    ),
    of_model(
        "no-compiler",
        "The image has no C++ compiler",
        Sample("torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found", "PyTorch 2.15"),
    ),
    Rule(
        name="slow-rank",
        title="One process is slower than the others",
        certainty=Certainty.SLOW,
        texts=(" is slow: the others wait for it ",),
        pattern=r"(rank \d+ on node \S+) is slow: the others wait for it ",
        explanation="All processes wait for the slowest one at each step. The line names its node, and says if data or "
        "computation takes it longer than the others.",
        remedy="If it is data, compare the node's disk, network and CPU load with those of other nodes. If it is "
        "computation, compare the CPU load, and the clocks and temperatures of the GPUs (`nvidia-smi -q -d "
        "PERFORMANCE`). Take a node that stays slow out of service (`kubectl cordon NODE`).",
        samples=(
            Sample(
                "rank 1 on node gpu-7 is slow: the others wait for it 98% of the time, because its data takes 0.324 s "
                "per step (median 0.00042 s): compare the disk, network and CPU load of its node with those of others",
                "provoked by tests: a process whose samples take long to load",
            ),
        ),
    ),
    Rule(
        name="killed-launcher",
        title="The command that ran it was killed",
        texts=("its launcher was killed, and its pods ended with it", "its process was killed"),
        explanation="Something on this machine killed it, such as the system for lack of memory. Its pods ended too.",
        remedy="Start it again; `kubetrain train` resumes from the newest checkpoint with the same --run-id.",
        samples=(
            Sample(
                "error: its launcher was killed, and its pods ended with it",
                "`kubetrain diagnose` of a local training whose command was killed",
            ),
        ),
    ),
    Rule(
        name="waits-for-data",
        title="Training waits for its data",
        certainty=Certainty.SLOW,
        texts=("the training waits for data ",),
        explanation="GPUs stand idle while batches are read and decoded.",
        remedy="Raise pods.cpu and train.loader_workers, or pack the images into shards (`kubetrain pack`), which can "
        "make them smaller.",
        samples=(
            Sample(
                "the training waits for data 62% of the time: give each pod more CPUs, raise train.loader_workers "
                "(PyTorch), or store smaller images",
                "the warning of the trainers",
            ),
        ),
    ),
)
START = Rule(
    name="start",
    title="A training starts",
    certainty=Certainty.FACT,
    texts=("training starts: ", "rank * resumes from ", "Starting worker group", "Barrier(WaitForAllTasks*has passed"),
    pattern=rf"^{PREFIX}(?:training starts: |rank \d+ resumes from )"
    r"|Starting worker group|Barrier\(WaitForAllTasks.*has passed with status: OK",
)
"""All processes have met: what came before is overcome."""
FIRST_ERROR = Rule(
    name="first-error",
    title="No rule knows this error",
    certainty=Certainty.UNKNOWN,
    texts=("Error", "Exception", "error: ", "terminate called"),
    pattern=rf"^{PREFIX}(?:(?!\S*ChildFailedError)[A-Za-z_][\w.]*(?:Error|Exception)(?:: |$)"
    r"|(?:[\w./-]+: )?error: (?![-+]?\d+\.\d)|Fatal Python error: |terminate called)",
    explanation="It is the first error of the process that failed first, as far as the logs show.",
    remedy="Read the lines around it in the log.",
)
"""Counts only if no cause is proven. Besides these, every error at the end of a traceback counts, except the summary of
torchrun's agent."""
UNKNOWN_FAILURE = Rule(
    name="unknown-failure",
    title="No rule knows this warning",
    certainty=Certainty.UNKNOWN,
    texts=("NCCL WARN ", " E tensorflow/", " E external/", "Warning*Failed", "ChildFailedError"),
    pattern=r"NCCL WARN |ChildFailedError|\bWarning\s+Failed"
    r"|\bE (?:tensorflow|external)/(?!.*(?:Unable to register cu|computation placer already|failed call to cuInit))",
    explanation="It is typical of logs that end in a failure, and no other line shows a cause.",
    remedy="Read the lines around it in the log, and pass the logs of all pods.",
    samples=(
        Sample("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "torchrun's summary without more"),
    ),
)
"""Counts only if nothing else is found."""
OWN_ERROR = Rule(
    name="own-error",
    title="kubetrain refused this, or could not do it",
    certainty=Certainty.LIKELY,
    texts=("error: ",),
    pattern=rf"^{PREFIX}error: (?![A-Za-z_][\w.]*(?:Error|Exception)\b)\S.*?(?:: |; )",
    explanation="The message is kubetrain's own, and the first error of the process that failed first.",
    remedy="The message says what to change. If it names another process or a log, look there first.",
)
"""An unknown error in kubetrain's own words, which end with their remedy."""
