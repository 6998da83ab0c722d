"""Rules about what connects the pods, and how fast."""

from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample

RULES = (
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
        remedy="Request the device with rdma in placement, and check it with `ibstat` in the pod. Leave NCCL_NET as "
        "network=infiniband sets it: NCCL then fails instead of falling back.",
        samples=(
            Sample(
                "the training uses TCP on node-a, but InfiniBand was asked for: request the device with rdma in "
                "placement, and check it with `ibstat` in the pod",
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
        remedy="Request the device with rdma in placement, and check it with `ibstat` in the pod. network=infiniband "
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
)
