"""Ray, with packages of its own."""

from pathlib import Path

PYTHON = Path(__file__).parents[2] / ".venv-ray" / "bin" / "python"
PACKAGES = PYTHON.parents[1] / "lib" / "python3.11" / "site-packages"
