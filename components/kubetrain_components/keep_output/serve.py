"""Keep the output of a pod's training in a store.

python -m kubetrain_components.keep_output.serve --uri s3://bucket/output --to /output
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from kubetrain_components.keep_output.kept_run import KeptRun
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.socket_server import SOCKET_MODE_IN_PODS, answering, serve_in_pod
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.training_output import TrainingOutput

until_exit = ExitStack()
"""Ends the copies of kept_output() with this process."""
VERBS = ("begin", "fetch", "begin_parts", "put_part", "parts", "put", "commit", "remove", "push", "push_last", "pull")


@contextlib.contextmanager
def keeping(uri: str, endpoint: str, root: Path, socket_mode: int = 0o600) -> Iterator[None]:
    """Keep the outputs of runs, in folders of the root, in the store with this URI while the block runs."""
    root.mkdir(parents=True, exist_ok=True)

    @cache
    def run_of(name: str) -> KeptRun:
        return KeptRun(open_store(f"{uri.rstrip('/')}/{name}", endpoint, was_reached=True), root / name)

    @contextlib.contextmanager
    def answer(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        run, _, path = request["path"].partition("/")
        kept, more = run_of(run), {"names": request["names"]} if "names" in request else {}
        if request["do"] not in VERBS:
            raise KubetrainError(f"unknown request '{request['do']}': use images of one version")
        with kept.lock:
            result = getattr(kept, request["do"])(path, **more)
        yield {"result": result}

    with answering(root, answer, f"the store {uri}", "raise storage.output_size, or use larger disks", socket_mode):
        yield


def kept_output(uri: str, endpoint: str, run_id: str) -> TrainingOutput:
    """Return a copy of a run's output, which this process fills and keeps until it ends."""
    root = Path(mkdtemp())
    until_exit.enter_context(keeping(uri, endpoint, root))
    os.environ[output_store.VARIABLE] = str(root)
    output_store.begin(root / run_id)
    return TrainingOutput(root / run_id)


def main() -> int:
    parser = argparse.ArgumentParser(description="Keep the output of a training in a store.", allow_abbrev=False)
    parser.add_argument("--uri", required=True, help="the outputs of all runs: s3://BUCKET/PREFIX")
    parser.add_argument("--endpoint", default="", help="URL of the S3 server (default: AWS)")
    parser.add_argument("--to", type=Path, required=True, help="folder of the outputs in the pod")
    parsed = parser.parse_args()
    os.umask(0)  # the training may run as another user
    return serve_in_pod(_keeping_as_told(parsed))


@contextlib.contextmanager
def _keeping_as_told(parsed: argparse.Namespace) -> Iterator[str]:
    with keeping(parsed.uri, parsed.endpoint, parsed.to, SOCKET_MODE_IN_PODS):
        yield f"keeping {parsed.to} in {parsed.uri}"


if __name__ == "__main__":
    sys.exit(main())
