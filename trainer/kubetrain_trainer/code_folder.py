"""The folder of your own code that was brought to this process."""

import os
import sys

VARIABLE = "KUBETRAIN_CODE"
"""The environment variable with the folder; not set if the code is in the image."""


def enter_code_folder() -> None:
    """Make it the working directory, and import from it first: `python -m` has put the former one first."""
    if folder := os.environ.get(VARIABLE):
        os.chdir(folder)
        sys.path[0] = folder
