"""Rules about processes that cannot reach each other, or lose each other."""

from kubetrain_pipelines.diagnose.rule import Certainty, Rule, Sample
from kubetrain_pipelines.diagnose.tracebacks import patterns_of, remedy, said

LOOK_AT_FIRST = "Look for the process that failed first: its log has the cause. Pass the logs of all pods."
PEER_CAUSES = (
    *("shared-memory", "gpu-memory", "pod-memory", "out-of-memory", "loader-killed", "killed", "disk-full", "hang"),
    *("permission", "read-only", "missing-module", "nan", "driver", "no-gpu", "gpu-fault", "device-assert"),
    *("wrong-interface", "unused-parameter", "preempted", "evicted", "node-lost", "credentials", "nccl-versions"),
)
RULES = (
    Rule(
        name="wrong-interface",
        title="The network interface does not exist",
        texts=(
            said("wrong-interface"),
            "Bootstrap : no socket interface found",
            "no NCCL_SOCKET_IFNAME interface found",
            *patterns_of("wrong-interface"),
            "is neither AF_INET(2) nor AF_INET6(10)",
        ),
        explanation="NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that this pod does not have.",
        remedy="Remove the variable, or name an interface that `ip -brief address` lists in the pod, such as "
        "`--set pods.nccl.NCCL_SOCKET_IFNAME=eth0`. With pods.host_network the names are those of the node.",
        samples=(
            Sample(
                "vm:28060:28060 [0] bootstrap.cc:126 (bootstrapNetInit) NCCL WARN Bootstrap : no socket interface "
                "found",
                "provoked by tests: NCCL with NCCL_SOCKET_IFNAME=eth7",
            ),
            Sample(
                "RuntimeError: [enforce fail at /gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find "
                "address for: eth7",
                "provoked by tests: gloo with GLOO_SOCKET_IFNAME=eth7",
            ),
            Sample(
                "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
                "https://github.com/NVIDIA/nccl/issues/1837",
            ),
        ),
    ),
    Rule(
        name="port-in-use",
        title="The port is already in use",
        texts=(
            "The server socket has failed to listen on *EADDRINUSE",
            "The server socket has failed to bind",
            "OSError: [Errno 98] Address already in use",
            "Could not start gRPC server",
        ),
        pattern=r"The server socket has failed to (?:bind|listen on .*EADDRINUSE)|Could not start gRPC server"
        r"|^(?!.*metrics are not served).*OSError: \[Errno 98\] Address already in use",
        explanation="Another process listens on the port that this one must open.",
        remedy="End the other process (`ss -ltnp` names it). With pods.host_network, kubetrain gives each job its own "
        "port; elsewhere set another MASTER_PORT.",
        samples=(
            Sample(
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
                "address. port: 29513, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
                "provoked by tests: a port that is taken",
            ),
        ),
    ),
    Rule(
        name="no-dns",
        title="A host name cannot be resolved",
        certainty=Certainty.LIKELY,
        texts=(
            "cannot be retrieved (gai error: ",
            "Name or service not known",
            "Temporary failure in name resolution",
            "No address associated with hostname",
            "Name does not resolve",
        ),
        explanation="The cluster's DNS does not know the name. At the start of a job that is normal for some seconds.",
        remedy="Check that the Service of the job exists (`kubectl get service,endpoints`), that the first pod runs, "
        "and that the namespace's NetworkPolicy allows DNS (port 53, UDP and TCP) to kube-system. If it is a host of "
        "the internet, let pods reach it, or bring what the program downloads with the image or the dataset.",
        samples=(
            Sample(
                "[W1126 05:21:06.320964453 socket.cpp:764] [c10d] The IPv6 network addresses of (job-master-0.invalid, "
                "18468) cannot be retrieved (gai error: -2 - Name or service not known).",
                "provoked by tests: a MASTER_ADDR that does not exist",
            ),
        ),
    ),
    Rule(
        name="peers-missing",
        title="Some of the pods did not come",
        texts=(
            "seconds waiting for clients. */",
            "RendezvousTimeoutError",
            "DistStoreError: wait timeout after ",
            "Barrier timed out",
        ),
        explanation="The processes that started waited for the others until the timeout.",
        remedy="Check that all pods run (`kubectl get pods`): some may wait for nodes, images or a queue. If they need "
        "longer to start, raise train.nccl_timeout_seconds.",
        after=("no-dns", "unschedulable", "image-pull", "quota", "queue", *PEER_CAUSES),
        samples=(
            Sample(
                "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined.",
                "provoked by tests: one of two processes",
            ),
            Sample(
                "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
                "provoked by tests: one of two torchruns",
            ),
        ),
    ),
    Rule(
        name="unreachable",
        title="The processes do not reach each other",
        certainty=Certainty.LIKELY,
        texts=(said("unreachable"), *patterns_of("unreachable")),
        explanation="They met at MASTER_ADDR, but the addresses that gloo chose for them are not reachable from other "
        "pods, or a process was lost before all were connected.",
        remedy=remedy("unreachable"),
        after=PEER_CAUSES,
        samples=(
            Sample(
                "RuntimeError: Gloo connectFullMesh failed with [/__w/pytorch/third_party/gloo/gloo/transport/tcp/"
                "pair.cc:152] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:13201",
                "provoked by tests: gloo with GLOO_SOCKET_IFNAME=lo on two hosts",
            ),
            Sample(
                "RuntimeError: [enforce fail at /__w/pytorch/third_party/gloo/gloo/transport/tcp/socket.cc:142] "
                "rv != -1. -1 vs -1. connect: Network is unreachable",
                "gloo in PyTorch 2.15, with an interface of another network",
            ),
        ),
    ),
    Rule(
        name="master-unreachable",
        title="The first pod cannot be reached",
        texts=(
            "Error: The client socket has timed out after ",
            "[c10d] The client socket has timed out after ",
            "Error: The client socket has failed to connect",
            "RendezvousConnectionError: The connection to the C10d store has failed",
        ),
        explanation="Nothing answers at MASTER_ADDR and MASTER_PORT, where the processes of a training meet.",
        remedy="Check that the first pod (master-0 or worker-0) runs, that its log has no error, and that no "
        "NetworkPolicy blocks its port between the pods of the job (`kubectl get networkpolicy`).",
        after=("no-dns", "port-in-use", *PEER_CAUSES),
        samples=(
            Sample(
                "torch.distributed.DistNetworkError: The client socket has timed out after 5000ms while trying to "
                "connect to (127.0.0.1, 1).",
                "provoked by tests: a port on which nothing listens",
            ),
        ),
    ),
    Rule(
        name="tf-config",
        title="TF_CONFIG differs between the pods",
        texts=("Unexpected task registered with task_name=",),
        explanation="The pods have different lists of processes, or one has an index that is not in the list.",
        remedy="Let the operator set TF_CONFIG: remove your own, and start all pods again together.",
        samples=(
            Sample(
                "INVALID_ARGUMENT: Unexpected task registered with task_name=/job:worker/replica:0/task:2",
                "provoked by tests: workers whose TF_CONFIG lists two and three",
            ),
        ),
    ),
    Rule(
        name="tasks-missing",
        title="Some of TensorFlow's processes have not come yet",
        certainty=Certainty.LIKELY,
        texts=(" tasks to connect.", "RegisterTask", "agent in error status: DEADLINE_EXCEEDED"),
        pattern=r"Waiting for [1-9]\d*/\d+ tasks to connect\.|RegisterTask.*Deadline Exceeded"
        r"|agent in error status: DEADLINE_EXCEEDED",
        explanation="TensorFlow waits for all processes of TF_CONFIG.",
        remedy="Check that all pods run (`kubectl get pods`), and that the log of each that is missing has no error.",
        after=("tf-config", "no-dns", "peer-lost", *PEER_CAUSES),
        samples=(
            Sample(
                "I0000 00:00:1795670491.068282   28078 coordination_service.cc:502] Waiting for 1/2 tasks to connect.",
                "provoked by tests: one of two workers",
            ),
        ),
    ),
    Rule(
        name="collective-timeout",
        title="A process was late, or stood still, in a collective operation",
        certainty=Certainty.EFFECT,
        texts=("Watchdog caught collective operation timeout",),
        explanation="All processes must take part in each operation. This one waited until its timeout.",
        remedy="Look for the rank that is behind: the one that hangs or does not appear among these lines, or whose "
        "last enqueued work is lowest. If one legitimately takes longer, raise train.nccl_timeout_seconds. "
        "`--set pods.nccl.NCCL_DEBUG=INFO` logs the network in use.",
        samples=(
            Sample(
                "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
                "operation timeout: WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, NumelIn=544997376, "
                "NumelOut=68124672, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.",
                "https://github.com/hiyouga/LlamaFactory/issues/6269",
            ),
        ),
    ),
    Rule(
        name="rendezvous-closed",
        title="The job ended before this pod joined it",
        certainty=Certainty.EFFECT,
        texts=("RendezvousClosedError", "this pod lost contact with the others, or never reached them: "),
        explanation="Another pod succeeded or failed, and closed the place where they meet.",
        remedy=LOOK_AT_FIRST,
        samples=(
            Sample(
                "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
                "torch/distributed/elastic/rendezvous/api.py of PyTorch 2.15",
            ),
        ),
    ),
    Rule(
        name="peer-lost",
        title="Another process was lost",
        certainty=Certainty.EFFECT,
        texts=(
            said("peer-lost"),
            "Connection closed by peer [",
            "/gloo/*Connection reset by peer",
            "DistNetworkError: Failed to recv, got 0 bytes",
            "DistNetworkError: Connection reset by peer",
            "DistNetworkError: Broken pipe",
            "/gloo/*Timed out waiting ",
            "ncclRemoteError",
            "NCCL WARN *Connection closed by remote peer",
            "Collective ops is aborted",
            "errors_impl.UnavailableError: ",
            "errors_impl.AbortedError: ",
            "Aborting RingReduce with Unavailable",
            "Task /job:*heartbeat timeout",
            "stopped sending heartbeats",
            "UNAVAILABLE: *failed to connect to all addresses",
            "UNAVAILABLE: *Connection reset by peer",
            "UNAVAILABLE: *Socket closed",
        ),
        explanation="It failed, was killed or hangs, and this process noticed.",
        remedy=LOOK_AT_FIRST,
        samples=(
            Sample(
                "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed "
                "by peer [127.0.0.1]:402. This is typically caused by a remote worker crashing.",
                "provoked by tests: a process that ends",
            ),
            Sample(
                "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
                "prematurely.",
                "https://github.com/pytorch/pytorch/issues/122571",
            ),
        ),
    ),
)
