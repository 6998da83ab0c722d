"""Tell what a step's own program wrote from what Argo, KFP's launcher and KFP's executor wrote around it.

The launcher and the executor also write their whole input and output, as JSON of many lines.
"""

import re
from collections.abc import Iterable

AROUND = re.compile(
    r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.go:\d+\] "  # the launcher
    r"|time=\S+ level=\w+ msg=.*\bargo=true|\{\".*\"argo\":true|Error: exit status \d+$"  # Argo
    r"|\[KFP Executor [^]]*\]: ("
    r"Looking for component `|--component_module_path is not specified|Loading KFP component \"|Got executor_input:"
    r"|Did not write output file|Wrote executor output file to )"
)
OPENS_JSON = re.compile(r".*(\{|Got executor_input:)$")


class OwnOutput:
    """Selects the lines of one log, which arrive in order."""

    def __init__(self) -> None:
        self.hidden = 0
        self._is_in_json = False

    def of(self, lines: Iterable[str]) -> list[str]:
        return [line for line in lines if not self._is_around(line)]

    def _is_around(self, line: str) -> bool:
        if self._is_in_json and line[:1] in (" ", "{", "}"):
            self._is_in_json = line.rstrip("\n") != "}"
            is_around = True
        else:
            is_around = AROUND.match(line) is not None
            self._is_in_json = is_around and OPENS_JSON.match(line.rstrip("\n")) is not None
        self.hidden += is_around
        return is_around
