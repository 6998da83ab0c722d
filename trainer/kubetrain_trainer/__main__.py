"""Run a module of this package by the path of its folder, in an image that does not have it.

python /kubetrain/kubetrain_trainer kubetrain_trainer.own_code.check_imports --entry '{"script": "train.py"}'

An init container brings the folder into such a pod. Any Python reads this file, so that one which is too old gets a
sentence instead of a syntax error.
"""

import os
import runpy
import sys

OLDEST = (3, 8)


def main():  # type: ignore[no-untyped-def]  # noqa: ANN201 - in the syntax of any Python
    if sys.version_info < OLDEST:
        sys.exit("error: this image has Python %d.%d: choose one with 3.8 or newer" % sys.version_info[:2])  # noqa: UP031
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    place = os.path.dirname(folder)  # noqa: PTH120
    sys.path[:] = [place, *(path for path in sys.path if os.path.abspath(path) != folder)]  # noqa: PTH100
    # The processes that it starts find the package too; what the image itself has on its path stays.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH"))))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()  # type: ignore[no-untyped-call]
