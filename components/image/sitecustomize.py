"""In the components image, Python runs this first: an error outside any stage would reach people as "exit code 1"."""

import sys
from types import TracebackType


def _leave_cause(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    from kubetrain_trainer.termination import leave_words

    leave_words(sentence := _sentence(error))
    sys.__excepthook__(kind, error, traceback)
    print(f"error: {sentence}", file=sys.stderr)  # the last line of the log, which the UI shows


def _sentence(error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError) and (error.name or "").startswith("kubetrain"):
        return f"{words}: the pipeline was compiled for another version of kubetrain than this step's image: \
compile it anew, or give the step the image of its version"
    return words


sys.excepthook = _leave_cause
