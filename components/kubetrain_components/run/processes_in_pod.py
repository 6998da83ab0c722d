"""The number of training processes in a pod: one for each of its GPUs, unless the run sets another number."""

from kubetrain_components.jobs.placement import Placement
from kubetrain_trainer.errors import InvalidSetting


def processes_in_pod(framework: str, wanted: int, placement: Placement) -> int:
    """Return the number of processes; for 0, one for each GPU, or one without GPUs.

    Raises:
        InvalidSetting: if the processes could not use the GPUs, or would leave some idle.
    """
    if framework != "pytorch":
        _check_single(framework, wanted)
        return 1
    gpus = placement.gpu_count
    if wanted > gpus > 0:
        raise InvalidSetting(
            f"processes_per_worker is {wanted}, but a pod has {gpus} GPUs, and each process needs its own: raise gpus, "
            "or leave processes_per_worker out"
        )
    if 0 < wanted < gpus and not placement.allow_idle_gpus:
        raise InvalidSetting(
            f"processes_per_worker is {wanted}, so {gpus - wanted} of a pod's {gpus} GPUs would be idle: leave it out "
            "to use all, lower gpus, or set allow_idle_gpus"
        )
    return wanted or max(1, gpus)


def _check_single(framework: str, wanted: int) -> None:
    if framework == "tensorflow" and wanted > 1:
        raise InvalidSetting(
            f"processes_per_worker is {wanted}, but a TensorFlow process uses every GPU of its pod: leave it out and "
            "raise workers"
        )
