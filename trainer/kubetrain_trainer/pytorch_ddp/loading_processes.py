"""Move the workers that load samples out of the training's process group.

torchrun sends SIGTERM to the whole group, but the last steps before a training stops still need samples. The fork
server, which starts the workers, imports this module first.
"""

import os

os.setpgrp()
