"""Report why a step failed outside any stage, not only "exit code 1". Python runs this file first in the image."""

import sys
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    from kubetrain_trainer.termination import write_termination_message

    write_termination_message(sentence := _sentence(error))
    sys.__excepthook__(kind, error, traceback)
    print(f"error: {sentence}", file=sys.stderr)  # the last line of the log, which the UI shows


def _sentence(error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError) and (error.name or "").startswith("kubetrain"):
        return f"{words}: the pipeline was compiled with a different version of kubetrain than this step's image: \
recompile it, or set this step's image to the pipeline's version"
    return words


sys.excepthook = _report
