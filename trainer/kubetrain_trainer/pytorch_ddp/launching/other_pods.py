"""Messages between the agents of pods that train together, through torchrun's store in the first of them.

torchrun's own agents say nothing: if processes fail in one pod, those of the others may wait for them until a timeout,
or have ended, so that the pod which starts again waits in vain.
"""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistError, DistStoreError

FAILED, ENDED, OVER = "kubetrain/failed", "kubetrain/ended", "kubetrain/over"
CONNECT_TIMEOUT, NO_TIMEOUT = timedelta(seconds=5), timedelta(days=365)
RETRY_SECONDS = 1.0


def meet_anew(handler: Any) -> None:
    """Wait until the others have ended too, if this pod has restarted without them: they would not meet it."""
    while True:
        info = handler.next_rendezvous()
        if info.rank == 0 or info.store.add(_joined(info.rank), 1) == 1:
            return
        with contextlib.suppress(DistError):
            info.store.set(FAILED, "")
            info.store.set(OVER, "")
            info.store.wait(["kubetrain/never"], NO_TIMEOUT)
        handler._store = None


class OtherPods:
    have_failed = False
    """True once processes of another pod have failed, or the first pod, which has the store, has restarted."""

    def __init__(self, handler: Any, group: Any) -> None:
        self._handler, self._group = handler, group
        threading.Thread(target=self._listen, daemon=True).start()

    def tell_failure(self) -> None:
        with contextlib.suppress(DistError):
            self._group.store.set(FAILED, "")
            self._group.store.set(OVER, "")

    def await_ends(self, seconds: float) -> bool:
        """Wait until the processes of all pods have ended, or for this time; return False if another pod's failed."""
        store = self._group.store
        try:
            if store.add(ENDED, 1) == self._group.group_world_size:
                store.set(OVER, "")
            else:
                store.wait([OVER], timedelta(seconds=seconds))
        except DistStoreError:  # the others take longer
            return True
        except DistError:
            return False
        with contextlib.suppress(DistError):  # the first pod has ended, as all have
            return not store.check([FAILED])
        return not self.have_failed

    def _listen(self) -> None:
        while not self.have_failed:
            try:
                store = self._connect()
                if self._group.group_rank == 0 or store.check([_joined(self._group.group_rank)]):
                    store.wait([FAILED], NO_TIMEOUT)
                self.have_failed = True
            except DistError:  # the first pod is gone, or the network fails
                time.sleep(RETRY_SECONDS)

    def _connect(self) -> PrefixStore:
        """Connect apart from the agent, whose calls would wait for this one."""
        handler = self._handler
        address = (handler.master_addr, handler.master_port)
        store = TCPStore(*address, None, False, CONNECT_TIMEOUT, wait_for_workers=False, multi_tenant=True)
        return PrefixStore(handler.run_id, store)


def _joined(rank: int) -> str:
    return f"kubetrain/joined/{rank}"
