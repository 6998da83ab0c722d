"""torchrun's agent of a pod whose rendezvous is in etcd."""

from typing import Any

from torch.distributed.elastic.rendezvous import etcd_store

from kubetrain_trainer.pytorch_ddp.patient_agent import PatientAgent

EtcdException: type[Exception] = etcd_store.etcd.EtcdException  # type: ignore[attr-defined]
"""The errors of torchrun's client of etcd."""


class EtcdAgent(PatientAgent):
    """An agent that never closes the rendezvous, because others may still need it.

    In etcd it would stay closed for pods that restart after a failure, and for one that comes back when the others have
    ended. A rendezvous in the first pod ends with that pod.
    """

    def __init__(self, spec: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(spec, *arguments, **options)
        spec.rdzv_handler.shutdown = lambda: True
