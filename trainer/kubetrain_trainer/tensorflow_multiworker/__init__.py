"""The TensorFlow trainer: MultiWorkerMirroredStrategy, configured by TF_CONFIG."""

from __future__ import annotations

import logging
import os

# Must be set before TensorFlow is imported, whose messages would drown out the rest of the log.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
for library in ("tensorflow", "absl"):
    logging.getLogger(library).setLevel(logging.ERROR)
