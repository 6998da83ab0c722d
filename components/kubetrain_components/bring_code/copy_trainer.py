"""Copy the package that runs scripts of your own to a volume of a pod whose image may not have it.

python -m kubetrain_components.bring_code.copy_trainer --to /kubetrain
"""

import argparse
import shutil
from pathlib import Path

import kubetrain_trainer


def main() -> None:
    parser = argparse.ArgumentParser(description="Copy kubetrain_trainer into a folder.", allow_abbrev=False)
    parser.add_argument("--to", type=Path, required=True)
    source = Path(kubetrain_trainer.__file__).parent
    shutil.copytree(
        source,
        parser.parse_args().to / source.name,
        ignore=shutil.ignore_patterns("__pycache__"),  # another Python cannot use it
        dirs_exist_ok=True,
    )


if __name__ == "__main__":
    main()
