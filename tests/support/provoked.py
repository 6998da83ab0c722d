"""Failures that real processes provoke on this machine, each with the rule that `kubetrain diagnose` must name first.

python -m support.provoked FOLDER [NAME…]: provoke them, and write their logs, as in unit/recorded/failures.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.local.loopback import free_ports
from support.faulty_tasks import FAULTY_TASKS
from support.process_groups import tf_config

ROOT = str(Path(__file__).parents[2])
SHARED_MEMORY_OF_128K = (
    *("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=128k tmpfs /dev/shm && exec "$@"', "sh"),
)
DISK_OF_1M = (
    *("unshare", "--mount", "sh", "-c", 'mkdir -p full && mount -t tmpfs -o size=1m tmpfs full && exec "$@"', "sh"),
)
READ_ONLY_DISK = (
    *("unshare", "--mount", "sh", "-c", 'mkdir -p full && mount -t tmpfs -o ro tmpfs full && exec "$@"', "sh"),
)
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
GROUP = """
import datetime, os, signal, time, torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ.get("TIMEOUT", 5))))
rank = dist.get_rank()
"""
NCCL = """
import ctypes, glob, os, nvidia
library = ctypes.CDLL(glob.glob(os.path.join(list(nvidia.__path__)[0], "nccl/lib/libnccl.so.*"))[0])
class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
unique, group = UniqueId(), ctypes.c_void_p()
failed = library.ncclGetUniqueId(ctypes.byref(unique)) or library.ncclCommInitRank(ctypes.byref(group), 1, unique, 0)
raise SystemExit(failed)
"""
LIMIT = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (8 << 30,) * 2)\n"
TENSORFLOW = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""
REFUSING = """
import http.server, sys, threading
class Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self.send_response({status})
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
threading.Thread(target=server.serve_forever, daemon=True).start()
from kubetrain_pipelines.cli.entry_point import main
sys.argv[1:] = ["sync", "s3://bucket/data", "data", "--s3-endpoint", f"http://127.0.0.1:{{server.server_port}}"]
main()
"""
AWS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "x"}
Environment = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Failure:
    rule: str
    program: str = ""
    arguments: tuple[str, ...] = ("program.py",)
    """The Python command of each process."""
    prefix: tuple[str, ...] = ()
    environments: Callable[[], list[Environment]] = lambda: [{}]
    """The variables of each process, one for each rank."""
    files: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 120
    """Time after which processes that wait for others are killed."""


def group(world_size: int, ranks: int = 0, **variables: str) -> Callable[[], list[Environment]]:
    """Return the environments of the first ranks of a group, or of all."""

    def environments() -> list[Environment]:
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "GLOO_SOCKET_IFNAME": "lo"}
        sizes = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        return [
            {**common, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank), **variables}
            for rank in range(ranks or world_size)
        ]

    return environments


def training(
    rule: str, framework: str = "pytorch", prefix: tuple[str, ...] = (), processes: int = 1, **settings: Any
) -> Failure:
    """Return a failure of kubetrain's own trainer."""
    package = {"pytorch": "pytorch_ddp", "tensorflow": "tensorflow_multiworker"}[framework]
    common = {"model": "own:build", "metric": "loss", "batch_size": 8, "max_steps": 12, "checkpoint_every": 4}
    flags = {**common, "log_every": 3, "metrics_port": 0, **settings}
    words = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", _as_word(value))]
    return Failure(
        rule=rule,
        arguments=("-m", f"kubetrain_trainer.{package}.train", "--data-dir", ".", "--output-dir", "output", *words),
        prefix=prefix,
        environments=group(processes) if processes > 1 else lambda: [{}],
        files={"own.py": FAULTY_TASKS[framework]},
    )


def loading(trouble: str) -> str:
    """Return a program whose data loading processes meet this trouble at a sample."""
    return f"""
        import os, torch
        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                if index == 9:
                    {trouble}
                return torch.ones(4)
        for batch in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=2): pass
    """


def _as_word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def tensorflow_workers(*indexes: int, sizes: tuple[int, ...] = (2, 2)) -> Callable[[], list[Environment]]:
    def environments() -> list[Environment]:
        ports = free_ports(3)
        return [{"TF_CONFIG": tf_config(ports[: sizes[place]], index)} for place, index in enumerate(indexes)]

    return environments


FAILURES = {
    "host_memory": Failure(
        rule="out-of-memory",
        program=LIMIT + "import torch\ntorch.ones(4 << 30)",
    ),
    "memory_in_a_step": training("out-of-memory", model_args={"allocate": 400}),
    "memory_of_tensorflow": training("out-of-memory", "tensorflow", model_args={"allocate": 400}),
    "shared_memory": Failure(
        rule="shared-memory",
        prefix=SHARED_MEMORY_OF_128K,
        program="""
            import torch
            data = torch.utils.data.TensorDataset(torch.ones(64, 3, 64, 64))
            for batch in torch.utils.data.DataLoader(data, batch_size=32, num_workers=1): pass
        """,
    ),
    "shared_memory_of_the_trainer": training(
        "shared-memory", prefix=SHARED_MEMORY_OF_128K, loader_workers=1, batch_size=64
    ),
    "killed_loader": training(
        "loader-killed", loader_workers=1, model_args={"trouble": "kill", "place": "data", "after": 20}
    ),
    "exited_loader": Failure(rule="loader-exited", program=loading("os._exit(1)")),
    "killed_rank": Failure(
        rule="killed",
        arguments=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"),
        program=GROUP
        + """
for step in range(100):
    if step == 3 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(10))
""",
        environments=lambda: [{"GLOO_SOCKET_IFNAME": "lo"}],
    ),
    "peer_lost": Failure(
        rule="peer-lost",
        program=GROUP
        + """
if rank == 1:
    time.sleep(1)
    os._exit(0)
for step in range(1000):
    dist.all_reduce(torch.ones(10))
    time.sleep(0.01)
""",
        environments=group(2),
    ),
    "master_unreachable": Failure(
        rule="master-unreachable", program=GROUP, environments=lambda: group(2, MASTER_PORT="1")()[1:]
    ),
    "no_dns": Failure(
        rule="no-dns", program=GROUP, environments=lambda: group(2, MASTER_ADDR="job-master-0.invalid")()[1:]
    ),
    "peers_missing": Failure(rule="peers-missing", program=GROUP, environments=group(2, 1)),
    "rendezvous_timeout": Failure(
        rule="peers-missing",
        arguments=(
            *("-m", "torch.distributed.run", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-conf"),
            *("join_timeout=3,is_host=1", "--rdzv-endpoint", "127.0.0.1:0", "program.py"),
        ),
    ),
    "port_in_use": Failure(
        rule="port-in-use",
        program="import socket\ntaken = socket.create_server(('127.0.0.1', 0))\nimport os\n"
        "os.environ['MASTER_PORT'] = str(taken.getsockname()[1])\n" + GROUP,
        environments=group(1),
    ),
    "wrong_interface": Failure(rule="wrong-interface", program=GROUP, environments=group(1, GLOO_SOCKET_IFNAME="eth7")),
    "unreachable_addresses": Failure(
        rule="unreachable",
        program="""
            import ctypes, datetime, os, subprocess, torch.distributed as dist
            rank = int(os.environ["RANK"])
            if rank == 1:  # on a host of its own, whose loopback interface is another one
                assert ctypes.CDLL(None).unshare(0x40000000) == 0
                subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            store = dist.FileStore(os.path.abspath("store"), 2)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=5)
            )
        """,
        environments=group(2),
    ),
    "nccl_wrong_interface": Failure(
        rule="wrong-interface",
        program=NCCL,
        environments=lambda: [{"NCCL_SOCKET_IFNAME": "eth7", "NCCL_DEBUG": "WARN"}],
    ),
    "driver_too_old": Failure(rule="driver", program=NCCL, environments=lambda: [{"NCCL_DEBUG": "WARN"}]),
    "tensorflow_peer_missing": Failure(
        seconds=20, rule="tasks-missing", program=TENSORFLOW, environments=tensorflow_workers(0)
    ),
    "tensorflow_sizes_differ": Failure(
        seconds=60, rule="tf-config", program=TENSORFLOW, environments=tensorflow_workers(0, 2, sizes=(2, 3))
    ),
    "loss_of_nan": training("nan", processes=2, model_args={"nan": list(range(256))}),
    "steps_skipped": training("nan", precision="fp16", model_args={"nan": list(range(256))}),
    "loss_of_infinity": replace(
        training("overflow", precision="fp32"),
        files={"own.py": FAULTY_TASKS["pytorch"].replace("return (outputs", "return 1e39 * (outputs")},
    ),
    "hang": training(
        "hang",
        processes=2,
        model_args={"trouble": "hang", "place": "loss", "rank": 1, "after": 7},
        nccl_timeout_seconds=5,
    ),
    "disk_full": Failure(
        rule="disk-full-probably",
        prefix=DISK_OF_1M,
        program="import torch\ntorch.save(torch.ones(1 << 20), 'full/checkpoint.pt')",
    ),
    "disk_full_of_the_trainer": training(
        "disk-full", prefix=DISK_OF_1M, output_dir="full/output", model_args={"ballast": 13}
    ),
    "permission": Failure(
        rule="permission",
        prefix=NOBODY,
        program="open('checkpoint.pt', 'wb')",
    ),
    "read_only": Failure(rule="read-only", prefix=READ_ONLY_DISK, program="open('full/checkpoint.pt', 'wb')"),
    "missing_module": Failure(rule="missing-module", program="import torch\nimport timm_of_mine"),
    "unused_parameter": Failure(
        rule="unused-parameter",
        program=GROUP
        + """
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return self.used(x)
model = nn.parallel.DistributedDataParallel(Model())
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
""",
        environments=group(2),
    ),
    "array_memory": Failure(rule="out-of-memory", program=LIMIT + "import numpy\nnumpy.ones(1 << 33)"),
    "tensorflow_peer_killed": Failure(
        rule="peer-lost",
        program=TENSORFLOW
        + """
import os, signal
index = strategy.cluster_resolver.task_id
@tf.function
def add():
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones(10))
for step in range(1000):
    if index == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    strategy.run(add)
""",
        environments=tensorflow_workers(0, 1),
    ),
    "stopped_peer": Failure(
        rule="peer-lost",
        program=GROUP
        + """
for step in range(1000):
    if rank == 1 and step == 3:
        time.sleep(20)
        os._exit(0)
    dist.all_reduce(torch.ones(10))
""",
        environments=group(2),
    ),
    "import_on_one_rank": Failure(
        rule="missing-module",
        arguments=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"),
        program=GROUP
        + """
dist.all_reduce(torch.ones(10))
if rank == 1:
    import library_of_one_node
dist.all_reduce(torch.ones(10))
""",
        environments=lambda: [{"GLOO_SOCKET_IFNAME": "lo"}],
    ),
    "metrics_on_a_full_disk": Failure(
        rule="disk-full",
        prefix=DISK_OF_1M,
        program="""
            import json
            with open("full/metrics.jsonl", "a") as file:
                for step in range(1 << 20):
                    print(json.dumps({"step": step, "loss": 0.5}), file=file)
        """,
    ),
    "expired_token": Failure(
        rule="credentials",
        program=REFUSING.format(status=400, code="ExpiredToken", message="The provided token has expired."),
        environments=lambda: [AWS],
    ),
    "untrusted_certificate": Failure(
        rule="certificate",
        program="""
            import http.server, ssl, subprocess, threading, urllib.request
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
                 "-subj", "/CN=localhost"], check=True, capture_output=True)
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain("cert.pem", "key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            urllib.request.urlopen(f"https://localhost:{server.server_port}/weights.pt")
        """,
    ),
    "checkpoint_of_another_user": Failure(
        rule="permission",
        prefix=NOBODY,
        program="import torch\ntorch.save({'step': 1}, 'checkpoint.pt')",
    ),
    "assertion_on_one_rank": Failure(
        rule="first-error",
        program=GROUP
        + """
for step in range(100):
    assert rank == 0 or step < 3, "the labels of this shard are empty"
    dist.all_reduce(torch.ones(10))
""",
        environments=group(2),
    ),
    "joined_too_late": Failure(
        rule="rendezvous-closed",
        program="""
            from torch.distributed import TCPStore
            from torch.distributed.elastic.rendezvous import RendezvousParameters
            from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
            from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
            store = TCPStore("127.0.0.1", 0, is_master=True)
            parameters = RendezvousParameters("c10d", "127.0.0.1", "job", 1, 2)
            first, second = (
                create_handler(store, C10dRendezvousBackend(store, "job"), parameters) for _ in range(2)
            )
            first.set_closed()
            second.next_rendezvous()
        """,
    ),
}
HELD_OUT = {
    "numbers_of_numpy": Failure(rule="out-of-memory", program=LIMIT + "import numpy\nnumpy.ones(1 << 33).cumsum()"),
    "sample_that_cannot_be_read": Failure(
        rule="first-error", program=loading('raise ValueError("sample 9 has no label")')
    ),
    "tensors_of_different_sizes": Failure(
        rule="first-error",
        program=GROUP + "dist.all_reduce(torch.ones(10 + rank))\n" * 3,
        environments=group(2),
    ),
    "denied_object": Failure(
        rule="access-denied",
        program=REFUSING.format(status=403, code="AccessDenied", message="Access Denied"),
        environments=lambda: [AWS],
    ),
    "keras_loss_of_nan": Failure(
        rule="nan-seen",
        program="""
            import keras, numpy
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(optimizer=keras.optimizers.SGD(1e30), loss="mse")
            model.fit(numpy.ones((64, 4)), numpy.ones((64, 1)), epochs=3, verbose=2)
            raise SystemExit(1)
        """,
    ),
    "tensorflow_memory": Failure(
        rule="out-of-memory",
        program=LIMIT + "import tensorflow as tf\nprint(tf.reduce_sum(tf.random.uniform([1 << 33])))",
    ),
    "checkpoint_on_a_read_only_disk": Failure(
        rule="read-only", prefix=READ_ONLY_DISK, program="import torch\ntorch.save({'step': 1}, 'full/checkpoint.pt')"
    ),
    "weights_from_an_unknown_host": Failure(
        rule="no-dns", program="import torch\ntorch.hub.load_state_dict_from_url('https://weights.invalid/a.pt', '.')"
    ),
    "torchrun_on_a_port_in_use": Failure(
        rule="port-in-use",
        program="""
            import socket, subprocess, sys
            taken = socket.create_server(("127.0.0.1", 0))
            subprocess.run([sys.executable, "-m", "torch.distributed.run", "--master-port", str(taken.getsockname()[1]),
                            "--nproc-per-node", "1", "program.py"])
        """,
    ),
    "shared_files": Failure(
        rule="shared-memory",
        prefix=SHARED_MEMORY_OF_128K,
        program="""
            import torch
            torch.multiprocessing.set_sharing_strategy("file_system")
            data = torch.utils.data.TensorDataset(torch.ones(64, 3, 64, 64))
            for batch in torch.utils.data.DataLoader(data, batch_size=32, num_workers=1): pass
        """,
    ),
}
"""Provoked after the rules had been written, to measure them; no rule was made for one of these."""


def provoke(name: str, folder: Path) -> list[Path]:
    """Run a failure to its end in a new folder, and return the logs of its processes."""
    failure = {**FAILURES, **HELD_OUT}[name]
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "program.py").write_text(textwrap.dedent(failure.program))
    for file, content in failure.files.items():
        (folder / file).write_text(content)
    processes = []
    for rank, environment in enumerate(failure.environments()):
        log = folder / f"rank-{rank}.log"
        with log.open("wb") as output:
            command = [*failure.prefix, sys.executable, *failure.arguments]
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment}
            process = subprocess.Popen(command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT)
        processes.append((process, log))
    for process, _ in processes:
        try:
            process.wait(failure.seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    return [log for _, log in processes]


def record(name: str, recorded: Path) -> None:
    """Provoke a failure, and keep its logs without the paths of this machine."""
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary).chmod(0o755)  # some failures are those of other users
        folder = Path(temporary, name)
        for log in provoke(name, folder):
            text = log.read_text(errors="replace")
            for path, instead in (
                (str(folder), "/job"),
                (sys.prefix, "/venv"),
                (sys.base_prefix, "/usr"),
                (ROOT, "/kubetrain"),
            ):
                text = text.replace(path, instead)
            (recorded / name).mkdir(parents=True, exist_ok=True)
            (recorded / name / log.name).write_text(text)


if __name__ == "__main__":
    for each in sys.argv[2:] or [*FAILURES, *HELD_OUT]:
        record(each, Path(sys.argv[1]))
