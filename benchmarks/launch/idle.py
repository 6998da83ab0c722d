"""Count a launcher's requests per second while nothing happens: the two pods of its job sleep.

.venv/bin/python benchmarks/launch/idle.py [--seconds 180], with KUBECONFIG naming a cluster that has python:3.11-slim.

The launcher talks to a counting relay, which talks to `kubectl proxy`.
"""

import argparse
import os
import re
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from overhead import namespace

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.cluster import Launched

SETTLING_SECONDS = 10
REQUEST_LINE = re.compile(rb"(?:^|\r\n\r\n)([A-Z]+) (\S+) HTTP/1\.1\r\n")
SLEEPING = "import time; print('up', flush=True); time.sleep(3600)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=180, help="how long to count")
    seconds = parser.parse_args().seconds
    with namespace() as api, Proxy() as cluster, Relay(cluster) as relay, tempfile.TemporaryDirectory() as folder:
        os.environ["KUBECONFIG"] = kubeconfig(Path(folder), relay.server_address[1])
        launched = Launched(api.namespace, [SLEEPING, SLEEPING], "idle")
        launched.await_line("[worker-0] up")
        time.sleep(SETTLING_SECONDS)
        print(f"{sum(relay.counted.values())} requests to start, and to settle")
        relay.counted.clear()
        time.sleep(seconds)
        counted = Counter(relay.counted)
        launched.process.terminate()
        launched.rest()
    for request, count in counted.most_common():
        print(f"{count:>5} {request}")
    print(f"{sum(counted.values()) / seconds:.2f} requests/s over {seconds} s")


class Proxy:
    """Run `kubectl proxy` on a free port."""

    def __enter__(self) -> int:
        self.process = subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        return int(self.process.stdout.readline().rsplit(":", 1)[1])

    def __exit__(self, *unused: object) -> None:
        self.process.terminate()
        self.process.wait()


class Relay(socketserver.ThreadingTCPServer):
    """Forward bytes in both directions and count the requests."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.port = port
        self.counted: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Connection(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port)) as cluster:
            threading.Thread(target=pass_on, args=(cluster, self.request), daemon=True).start()
            pass_on(self.request, cluster, self.count)

    def count(self, data: bytes) -> None:
        for method, target in REQUEST_LINE.findall(data):
            path, _, query = target.decode().partition("?")
            watch = " (watch)" if "watch=true" in query else ""
            self.server.counted[f"{method.decode()} {path}{watch}"] += 1


def pass_on(source: socket.socket, target: socket.socket, look: Any = lambda data: None) -> None:
    try:
        while data := source.recv(1 << 16):
            look(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one side has closed
        target.close()


def kubeconfig(folder: Path, port: int) -> str:
    names = {"cluster": "relay", "user": "nobody"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "relay", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "relay", "context": names}],
        "current-context": "relay",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return str(path)


if __name__ == "__main__":
    main()
