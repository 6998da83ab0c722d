"""Keras models of many kinds, checked in a process of their own, because TensorFlow and PyTorch crash side by side."""

import subprocess
import sys
from pathlib import Path

CHECKS = Path(__file__).parent / "scripts" / "keras_models.py"


def test_keras_models_of_many_kinds_train_as_keras_does() -> None:
    program = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CHECKS))
    finished = subprocess.run(program, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
