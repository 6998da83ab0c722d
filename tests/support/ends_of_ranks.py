"""Ways in which one of two processes ends differently: programs, and what the verdict must say of each."""

import re

BEFORE = """
import ctypes, json, os, signal, socket, sys, time
from pathlib import Path
from kubetrain_trainer import session
from kubetrain_trainer.processes.process_role import own_role

rank, output = own_role().rank, Path(os.environ["KUBETRAIN_OUTPUT"])
with open(output / "starts", "a") as starts:
    starts.write(str(rank))

def meet():
    '''Connect both processes, as a process group does: neither gets on while the other one is missing.'''
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    host, port = (cluster.get("chief") or cluster["worker"])[0].split(":")
    if rank == 0:
        return socket.create_server((host, int(port))).accept()[0]
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except OSError:
            time.sleep(0.05)

def exchange():
    try:
        peer.sendall(b".")
        alive = peer.recv(1)
    except OSError:
        alive = b""
    if not alive:
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer")

def save():
    (output / "export" / "model").write_text("weights")

def end_of_the_other():
    while peer.recv(1):
        pass
    time.sleep(0.5)

peer = meet()
"""
OF_TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")

def exchange():
    dist.all_reduce(torch.ones(1))

def end_of_the_other():
    dist.destroy_process_group()
    while not list(output.glob(".ended-1")):
        time.sleep(0.1)
    time.sleep(0.5)

exchange()
"""
BEFORE_IN_TORCH = BEFORE.replace("peer = meet()\n", OF_TORCH)
SAVES = "if rank == 0: save()"
WAYS = {
    # what rank 0 and rank 1 do: what the verdict says, starts of rank 0 and of rank 1
    "rank 0 raises when the other has ended": (
        ["if rank == 0:", "    end_of_the_other()", '    raise RuntimeError("disk says no")  # here'],
        *(r"RuntimeError: disk says no", 1, 1),
    ),
    "rank 0 is killed when the other has ended": (
        ["if rank == 0:", "    end_of_the_other()", "    os.kill(os.getpid(), signal.SIGKILL)"],
        *(r"was killed by SIGKILL|exited with code 137", 1, 1),
    ),
    "rank 1 raises first": (
        ['if rank == 1: raise ValueError("broken")  # here', "exchange()", SAVES],
        *("ValueError: broken", 3, 3),
    ),
    "rank 1 raises when rank 0 has ended": (
        [SAVES, "else:", "    time.sleep(1)", '    raise ValueError("late")  # here'],
        *("ValueError: late", 2, 2),
    ),
    "rank 1 ends with exit code 3 when rank 0 has ended": (
        [SAVES, "else:", "    time.sleep(1)", "    sys.exit(3)  # here"],
        *(r"sys.exit\(3\)", 2, 2),
    ),
    "rank 1 ends with exit code 3 while rank 0 waits for it": (
        ["if rank == 1: sys.exit(3)  # here", "exchange()", SAVES],
        *(r"sys.exit\(3\)", 3, 3),
    ),
    "rank 1 ends early with exit code 0": (
        ["if rank == 1: os._exit(0)", "exchange()", SAVES],
        *("another process was lost", 1, 1),
    ),
    "rank 0 is in a barrier when the other ends": (
        ["if rank == 0:", "    time.sleep(3)", "    exchange()"],
        *("another process was lost", 1, 1),
    ),
    "rank 1 is killed": (
        ["if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", "exchange()", SAVES],
        *(r"was killed by SIGKILL|exited with code 137", 3, 3),
    ),
    "rank 1 has a segmentation fault": (
        ["if rank == 1: ctypes.string_at(0)  # here", "exchange()", SAVES],
        *("Segmentation fault", 3, 3),
    ),
    "nobody writes a model": (["exchange()"], "there is no model in ", 1, 1),
    "rank 0 ends without a word": (["exchange()", "if rank == 0: os._exit(0)"], "rank 0 reported no checkpoint", 1, 1),
    "a mistake before the first step": (["len(3)  # here"], "TypeError: object of type 'int' has no len", 1, 1),
    "a module that is missing": (["import no_such_module  # here"], "No module named 'no_such_module'", 1, 1),
    "a program that needs a GPU": (
        ['raise RuntimeError("this example requires CUDA")  # here'],
        *("RuntimeError: this example requires CUDA", 1, 1),
    ),
    "no Python": (["if rank ==:  # here"], r"SyntaxError: invalid syntax \(train.py, line \d+\)", 0, 0),
}


def program(way: str, before: str) -> str:
    return "\n".join([before, *WAYS[way][0], ""])


def check_names_it(verdict: str, way: str, text: str) -> None:
    """Check that the verdict says what it must of this program, and in which line."""
    assert re.search(WAYS[way][1], verdict), verdict
    if "# here" in text:
        line = next(number for number, each in enumerate(text.splitlines(), 1) if "# here" in each)
        assert f"train.py, line {line}" in verdict, verdict
