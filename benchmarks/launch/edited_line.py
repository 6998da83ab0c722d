"""Measure the time from an edited line of your script to its first step in a pod.

KUBECONFIG names a cluster that has the images, --store a prefix in S3, with the credentials in AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY, and --endpoint a server that this machine and the pods reach:

.venv/bin/python benchmarks/launch/edited_line.py --store s3://bucket/models --endpoint http://10.88.0.1:9000
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from overhead import namespace

from kubetrain_components.jobs.kubernetes.api import KubernetesApi

SCRIPT = """
import torch
from kubetrain_trainer import session

torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    loss = model(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    session.log(step + 1, edit={edit})
session.finish(lambda folder: torch.save(model.module.state_dict(), folder / "model.pt"))
torch.distributed.destroy_process_group()
"""
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="prefix in S3 for the code")
    parser.add_argument("--endpoint", default="", help="URL of the S3 server")
    parser.add_argument("--launches", type=int, default=5, help="launches; the median counts")
    parser.add_argument("--workers", type=int, default=2, help="pods of each")
    parsed = parser.parse_args()
    with namespace() as api, tempfile.TemporaryDirectory() as folder:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubetrain-s3"}}
        api.create(api.path("v1", "secrets"), {**secret, "stringData": {name: os.environ[name] for name in KEYS}})
        store = (f"model.uri={parsed.store}", f"data.endpoint={parsed.endpoint}")
        measured = [launch(api, Path(folder), edit, store, parsed.workers) for edit in range(parsed.launches)]
    print(f"{statistics.median(measured):.1f} s ({min(measured):.1f} to {max(measured):.1f})")


def launch(api: KubernetesApi, folder: Path, edit: int, store: tuple[str, ...], workers: int) -> float:
    """Edit the line, launch, and return the seconds until the first step of that edit is seen here."""
    pods = (f"pods.workers={workers}", "pods.cpu=200m")
    settings = [f"--set={pair}" for pair in (*store, *pods, "data.format=synthetic", "train.entry=train.py")]
    command = [str(Path(sys.executable).with_name("kubetrain")), "train", "--cluster", "--namespace", api.namespace]
    options = ["--output", "output", "--code", str(folder), *settings]
    began = time.monotonic()
    (folder / "train.py").write_text(SCRIPT.format(edit=edit))
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if f"step=1 edit={edit}" in line:
                seconds = time.monotonic() - began
    if process.returncode:
        raise SystemExit(f"the launch ended with exit code {process.returncode}")
    return seconds


if __name__ == "__main__":
    main()
