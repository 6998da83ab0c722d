"""Rules about what connects the pods, and how fast."""

from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample

RULES = (
    Rule(
        name="fabric-manager",
        title="The node's NVSwitches are not set up",
        texts=("system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY"),
        explanation="GPUs that NVSwitches connect (HGX, DGX) work only while NVIDIA's fabric manager runs on the node.",
        remedy="Start nvidia-fabricmanager, in the version of the driver (`systemctl status`), or restart the node.",
        samples=(
            Sample(
                "RuntimeError: Error 802: system not yet initialized",
                "https://github.com/gpustack/gpustack/issues/4154",
            ),
        ),
    ),
    Rule(
        name="infiniband-asked",
        title="InfiniBand is asked for",
        certainty=Certainty.FACT,
        texts=(
            "NCCL_IB_DISABLE set by environment to 0",
            "NCCL_IB_HCA set by environment to",
            "NCCL_NET set by environment to IB",
        ),
    ),
    Rule(
        name="tcp-used",
        title="A node uses TCP, but InfiniBand was asked for",
        certainty=Certainty.SLOW,
        texts=("the training uses TCP on ",),
        explanation="NCCL found no InfiniBand device on this node.",
        remedy="Request the device with pods.rdma, and check it with `ibstat` in the pod. Leave NCCL_NET as "
        "pods.network=infiniband sets it: NCCL then fails instead of falling back.",
        samples=(
            Sample(
                "the training uses TCP on node-a, but InfiniBand was asked for: request the device with pods.rdma, and "
                "check it with `ibstat` in the pod",
                "the trainer writes it",
            ),
        ),
    ),
    Rule(
        name="sockets-used",
        title="InfiniBand was asked for, but TCP is in use",
        certainty=Certainty.SLOW,
        texts=("NCCL INFO Using network Socket", "NCCL INFO NET/IB : No device found"),
        needs="infiniband-asked",
        explanation="NCCL found no InfiniBand device, and fell back to sockets.",
        remedy="Request the device with pods.rdma, and check it with `ibstat` in the pod. pods.network=infiniband "
        "makes NCCL fail instead of falling back.",
        samples=(
            Sample(
                "ip-172-31-12-21:45361:45361 [0] NCCL INFO NET/IB : No device found.",
                "https://github.com/NVIDIA/nccl/issues/226",
            ),
        ),
    ),
    Rule(
        name="no-gpu-direct",
        title="GPUDirect RDMA is not in use",
        certainty=Certainty.SLOW,
        texts=("GPU Direct RDMA Disabled for HCA", "InfiniBand copies through the memory of the host on "),
        explanation="InfiniBand copies through the memory of the host.",
        remedy="Load nvidia_peermem on the nodes (`lsmod | grep peermem`), or use a driver and kernel with DMA-BUF. "
        "`nvidia-smi topo -m` shows which NIC is near which GPU.",
        samples=(
            Sample(
                "hostname1:25668:27396 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
                "https://github.com/NVIDIA/nccl/issues/1537",
            ),
            Sample(
                "InfiniBand copies through the memory of the host on node-b: load nvidia_peermem on the node, or use a "
                "driver and kernel with DMA-BUF, so that it reads the memory of GPUs (GPUDirect RDMA)",
                "the trainer writes it",
            ),
        ),
    ),
    Rule(
        name="slow-link",
        title="A link between two nodes is slow",
        certainty=Certainty.SLOW,
        texts=("slow link: rank ",),
        explanation="Before the first step, it took twice as long as the fastest quarter of the links, or it carries "
        "less than Gigabit Ethernet. All processes wait for it at each step.",
        remedy="Check the network cards and cables of both nodes (`ethtool`, `ibstat`), and what else uses them. If "
        "several of these lines name a node, it is the likely one. With nodes to spare, set train.preflight=avoid, or "
        "exclude it by affinity of pods.pod.",
        samples=(
            Sample(
                "slow link: rank 0 on node-0 to rank 2 on node-2 carries 0.122 GB/s, expected at least 0.46 GB/s: "
                "check the network cards and cables of these nodes, or exclude one (train.preflight=avoid, or affinity "
                "of pods.pod)",
                "the trainer writes it",
            ),
        ),
    ),
    Rule(
        name="slow-device",
        title="A GPU or CPU is slower than others of its kind",
        certainty=Certainty.SLOW,
        texts=("slow device: rank ",),
        explanation="Before the first step, a product of matrices took twice as long as on the fastest quarter of "
        "them. All processes wait for it at each step.",
        remedy="Look for other programs on the node. `nvidia-smi -q` shows errors, temperature and clocks of its GPU. "
        "With nodes to spare, set train.preflight=avoid, or exclude the node by affinity of pods.pod.",
        samples=(
            Sample(
                "slow device: rank 2 on node-2 takes 2.5 ms for a product of matrices, expected at most 2 ms (H200): "
                "look for other programs on this node, and for errors and low clocks of its GPU with `nvidia-smi -q`, "
                "or exclude it (train.preflight=avoid, or affinity of pods.pod)",
                "the trainer writes it",
            ),
        ),
    ),
    Rule(
        name="faulty-device",
        title="A GPU computes wrongly",
        texts=("faulty device: rank ",),
        explanation="A product of small integers, which every device computes exactly, was wrong. The model "
        "would be, too.",
        remedy="Take the node out of use (`kubectl cordon`) and test its GPU with `dcgmi diag -r 3`. Do not use what "
        "was trained on it.",
        samples=(
            Sample(
                "faulty device: rank 2 on node-2 multiplies matrices wrongly (H200): take this node out of use",
                "the trainer writes it",
            ),
        ),
    ),
)
