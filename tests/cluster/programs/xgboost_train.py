"""Train one XGBoost model with all pods of a job, and check that every rank ends with the same bytes."""

import hashlib
import os
import socket
import sys
import time

import numpy as np
import xgboost
from faults import wait_or_fail
from xgboost import collective
from xgboost.tracker import RabitTracker


def find_tracker(host: str, port: int) -> str:
    """Return the address of the tracker once it listens: xgboost hangs if its first connection is refused."""
    for _ in range(60):
        try:
            with socket.create_connection((host, port), timeout=5) as connection:
                return str(connection.getpeername()[0])
        except OSError:  # the pod of rank 0 has no name in DNS yet, or does not listen yet
            time.sleep(1)
    sys.exit(f"no tracker listens on {host}:{port}")


def train(rank: int) -> str:
    """Train on samples of this rank's own, and return the digest of the model."""
    features = np.random.default_rng(rank).random((200, 4))
    labels = (features[:, 0] > 0.5) + rank
    data = xgboost.DMatrix(features, labels, nthread=1)
    model = xgboost.train({"tree_method": "hist", "nthread": 1}, data, num_boost_round=5)
    return hashlib.sha256(model.save_raw()).hexdigest()


def main() -> None:
    rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    leader = rank == 0
    address = socket.gethostbyname(socket.gethostname()) if leader else find_tracker(os.environ["MASTER_ADDR"], port)
    tracker = RabitTracker(n_workers=size, host_ip=address, port=port, sortby="task") if leader else None
    if tracker:
        tracker.start()
    with collective.CommunicatorContext(dmlc_tracker_uri=address, dmlc_tracker_port=port, dmlc_task_id=str(rank)):
        total = int(collective.allreduce(np.array([rank + 1.0]), collective.Op.SUM)[0])
        wait_or_fail(rank)
        digest = train(rank)
        same = collective.broadcast(digest, 0) == digest
        print(f"rank {rank} of {size} on {socket.gethostname()}: sum {total}, model {digest[:12]}", flush=True)
    if tracker:
        tracker.wait_for()  # until the other ranks have left, too
    if not same or total != size * (size + 1) // 2:
        sys.exit(f"rank {rank}: the sum is {total}, its model {'equals' if same else 'differs from'} that of rank 0")


main()
