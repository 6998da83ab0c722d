"""Traces of steps, for TensorBoard with the package xprof."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Record the operators of this process on the CPU and its GPUs."""
    tf.profiler.experimental.start(str(path))
    try:
        yield
    finally:
        tf.profiler.experimental.stop()
