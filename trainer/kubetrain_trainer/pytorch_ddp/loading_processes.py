"""Imported first by the server that forks the processes which load samples: they leave the training's process group.

torchrun sends SIGTERM to the whole group, and the last steps before a training stops need their samples too.
"""

import os

os.setpgrp()
