"""The log line that describes the processes and the hardware. Read it first if a training is slow."""

import os


def describe_start(
    *,
    backend: str,
    world_size: int,
    network: str,
    precision: str,
    threads: int,
    device: str,
    sharding: str = "none",
    used_gpus: int = 0,
    gpus: int = 0,
) -> str:
    """Return a line like "training starts: PyTorch 2.15.0, 2 processes, gloo over eth0, fp32, 1 thread each, CPU".

    Args:
        gpus: GPUs of this pod, of which its processes use used_gpus.
    """
    parts = [
        backend,
        counted(world_size, "process", "processes"),
        network,
        f"sharding={sharding}" if sharding != "none" else "",
        precision,
        counted(threads, "thread", "threads") + " each" * (world_size > 1),
        f"{used_gpus} of {counted(gpus, 'GPU', 'GPUs')} in this pod" if gpus else "",
        device,
    ]
    return "training starts: " + ", ".join(part for part in parts if part)


def with_interface(transport: str) -> str:
    """Add the network interface, if a variable of this transport names one."""
    interface = os.environ.get(f"{transport.upper()}_SOCKET_IFNAME")
    return f"{transport} over {interface}" if interface else transport


def counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
