"""The TensorFlow trainer: MultiWorkerMirroredStrategy, told who is who by TF_CONFIG."""

import logging
import os

# Before TensorFlow is imported: its messages would bury what a log is read for.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
for library in ("tensorflow", "absl"):
    logging.getLogger(library).setLevel(logging.ERROR)
