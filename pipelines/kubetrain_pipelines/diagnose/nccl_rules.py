"""Rules about NCCL: its versions, its network, and how far each rank is."""

from kubetrain_pipelines.diagnose.network_rules import PEER_CAUSES
from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample

WORK = Rule(
    name="collective-work",
    title="A process reports its last collective operation",
    certainty=Certainty.FACT,
    texts=("last enqueued NCCL work: ", "last enqueued work: "),
    pattern=r"\[(PG .*?Rank \d+)\].*last enqueued (?:NCCL )?work: (\d+)",
)
STRAGGLER = Rule(
    name="straggler",
    title="A rank is behind the others",
    certainty=Certainty.LIKELY,
    texts=(" has started * collective operations, and rank ",),
    explanation="It did not start an operation in which the others wait: it is slow, stands still or has left.",
    remedy="Read the log of this rank first. If it has no error, compare its node with the others (`nvidia-smi`, data, "
    "CPU), or give all ranks the same work: as many batches, and no collective operation on some ranks only.",
    after=PEER_CAUSES,
    samples=(
        Sample("rank 3 has started 1580 collective operations, and rank 0 has started 1582", "computed from the logs"),
    ),
)
"""Found by comparing what all ranks report; see `stragglers`."""
VERSIONS = (
    Rule(
        name="nccl-version",
        title="A process reports its version of NCCL",
        certainty=Certainty.FACT,
        texts=("NCCL version ",),
        pattern=r"(NCCL version \d[\w.+]+)",
    ),
    Rule(
        name="driver-version",
        title="A process reports the CUDA version of its driver",
        certainty=Certainty.FACT,
        texts=("cudaDriverVersion ",),
        pattern=r"(cudaDriverVersion \d+)",
    ),
)
MIXED_VERSIONS = Rule(
    name="mixed-versions",
    title="The pods have different versions of NCCL or of the driver",
    certainty=Certainty.LIKELY,
    texts=("NCCL version * in one log, NCCL version ", "cudaDriverVersion * in one log, cudaDriverVersion "),
    explanation="NCCL only works between equal versions; different drivers may differ in what they can do.",
    remedy="Give all pods the same image, by digest, and all nodes the same driver (`nvidia-smi` shows it).",
    after=("nccl-versions", "driver"),
    samples=(Sample("cudaDriverVersion 12020 in one log, cudaDriverVersion 12010 in w.log", "computed from the logs"),),
)
"""Found by comparing the logs; see `mixed_versions`."""
RULES = (
    Rule(
        name="nccl-versions",
        title="The pods have different versions of NCCL",
        texts=(
            "Mismatched NCCL version detected",
            "NCCL version mismatch with remote peer",
            "the pods have different versions (NCCL ",
        ),
        explanation="NCCL only works between equal versions.",
        remedy="Give all pods the same image, by digest.",
        samples=(
            Sample(
                "node2:6:6 [0] NCCL WARN Mismatched NCCL version detected : rank 0 version 22705 rank 1 version 22203",
                "libnccl 2 of PyTorch 2.15, which has this format",
            ),
            Sample(
                "the pods have different versions (NCCL 2.27.5 on node-b, NCCL 2.28.9 on node-a), between which NCCL "
                "cannot connect: give all the same image",
                "the trainer writes it",
            ),
        ),
    ),
    Rule(
        name="nccl-init",
        title="NCCL cannot connect the pods",
        texts=(
            "is setting up NCCL communicator and retrieving ncclUniqueId*but*got error",
            "NCCL WARN *connect to * failed : ",
            "NCCL WARN *Call to connect failed : ",
            "NCCL WARN *Connect to * failed : ",
            "NCCL WARN *exceeded error retry count",
            "socketStartConnect: Connect to *failed : ",
        ),
        explanation="The processes met, but NCCL's own connections, on random ports, fail.",
        remedy="Allow all ports between the pods of the job (NetworkPolicy, firewall). If nodes have several networks, "
        "name the one that connects them: `--set pods.nccl.NCCL_SOCKET_IFNAME=eth0`. If a process only comes late, "
        "raise train.nccl_timeout_seconds.",
        after=("wrong-interface", *PEER_CAUSES),
        samples=(
            Sample(
                "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by "
                "key '0', but store->get('0') got error: Connection reset by peer",
                "libtorch_cuda of PyTorch 2.15, which has this format",
            ),
            Sample(
                "gpu-bql-144-103:18553:18611 [0] include/socket.h:360 NCCL WARN Call to connect failed : Connection "
                "timed out",
                "https://github.com/NVIDIA/nccl-tests/issues/15",
            ),
        ),
    ),
    Rule(
        name="infiniband-missing",
        title="InfiniBand was asked for, and NCCL has no device for it",
        texts=("Failed to initialize any NET plugin", "Failed to initialize NET plugin IB"),
        explanation="NCCL_NET is IB, but the pod has no InfiniBand device, or its image lacks the libraries.",
        remedy="Request the device with pods.rdma, check it with `ibstat` in the pod, and build the image with the "
        "libraries (docs/administrators/infiniband.md). To use TCP, set pods.network=ethernet.",
        samples=(
            Sample(
                "node1:60:81 [0] plugin/net.cc:375 NCCL WARN Failed to initialize any NET plugin",
                "libnccl 2 of PyTorch 2.15, which has this format",
            ),
        ),
    ),
    Rule(
        name="locked-memory",
        title="InfiniBand may not lock memory",
        texts=("NCCL WARN *Call to ibv_*failed with error Cannot allocate memory",),
        explanation="RDMA needs locked memory, and the container's limit is lower.",
        remedy="Request the device with pods.rdma, which lets pods lock memory, or raise LimitMEMLOCK of the nodes' "
        "container runtime (docs/administrators/infiniband.md). `ulimit -l` shows the limit.",
        samples=(
            Sample(
                "node1:60:81 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
                "libnccl 2 of PyTorch 2.15, which has this format",
            ),
        ),
    ),
    Rule(
        name="infiniband-unreachable",
        title="InfiniBand or RoCE devices of two nodes cannot reach each other",
        texts=("Call to ibv_modify_qp failed", "Failed to modify QP to "),
        explanation="The processes met over TCP, but their network devices have no route to each other.",
        remedy="Choose the devices that are in one network by NCCL_IB_HCA. With RoCE, also set NCCL_IB_GID_INDEX and "
        "check the routes between the nodes; where only devices with the same number are connected, set "
        "NCCL_CROSS_NIC=0. To try without, set pods.network=ethernet.",
        samples=(
            Sample(
                "misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
                "https://github.com/NVIDIA/nccl-tests/issues/185",
            ),
        ),
    ),
    Rule(
        name="infiniband-port",
        title="An InfiniBand device or its link has failed",
        certainty=Certainty.LIKELY,
        texts=("Got async event : ",),
        pattern=r"Got async event : (?:.*error|.*fatal|port)",
        explanation="The device reports it. A link that goes down and up again ends trainings at random.",
        remedy="Check cable, port and counters of this node (`ibstat`, `ibqueryerrors`), and cordon it if it repeats.",
        samples=(
            Sample(
                "transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error",
                "https://github.com/Lightning-AI/lit-llama/issues/380",
            ),
        ),
    ),
    Rule(
        name="nvlink-sharp",
        title="NVLink SHARP does not work on this node",
        texts=("nvls.cc:*NCCL WARN Cuda failure", "Failed to bind NVLink SHARP"),
        explanation="NCCL could not use the multicast memory of the NVSwitches, which the fabric manager sets up.",
        remedy="Set NCCL_NVLS_ENABLE=0 in pods.nccl to train without it, and restart nvidia-fabricmanager on the node.",
        samples=(
            Sample(
                "transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'",
                "https://github.com/NVIDIA/nccl/issues/1672",
            ),
        ),
    ),
    Rule(
        name="stray-connection",
        title="Something else connects to NCCL's ports",
        certainty=Certainty.LIKELY,
        texts=("socketFinalizeAccept: wrong type", "socketFinalizeAccept: wrong magic"),
        explanation="Another job that uses the same addresses, or a scanner, speaks to a port that NCCL opened.",
        remedy="Let only pods of the job connect (deploy/launcher/network_policy.yaml), and end leftovers of earlier "
        "starts on the node (`ss -ltnp`).",
        samples=(
            Sample(
                "misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3",
                "https://github.com/NVIDIA/nccl-tests/issues/188",
            ),
        ),
    ),
    Rule(
        name="infiniband-error",
        title="An InfiniBand connection broke",
        certainty=Certainty.LIKELY,
        texts=("Got completion from peer * with error ", "Got completion from peer * with status="),
        explanation="The other process ended, or the link between the two nodes has failed.",
        remedy="If no process failed first, check the ports of both nodes with `ibstat` and `ibdiagnet`.",
        after=PEER_CAUSES,
        samples=(
            Sample(
                "NET/IB : Got completion from peer 10.10.23.6<40846> with error 5, opcode 0, len 0, vendor err 244",
                "https://github.com/pytorch/pytorch/issues/122571",
            ),
        ),
    ),
    MIXED_VERSIONS,
    *VERSIONS,
    WORK,
    STRAGGLER,
)
