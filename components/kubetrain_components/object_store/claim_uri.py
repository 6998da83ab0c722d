"""The URI of data on a PVC, which pods read where it is: pvc://CLAIM/PATH."""

import re
from dataclasses import dataclass
from typing import Self

from kubetrain_trainer.errors import InvalidSetting

SCHEME = "pvc://"
NAME = r"(?!\.{1,2}(?:/|\Z))[^/]+"
URI = re.compile(rf"pvc://(?P<claim>[a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?)(/(?P<path>{NAME}(/{NAME})*))?/?")


@dataclass(frozen=True)
class ClaimFolder:
    claim: str
    path: str = ""
    """Empty: the whole volume."""

    @classmethod
    def of(cls, uri: str) -> Self:
        """
        Raises:
            InvalidSetting: if the URI cannot name a folder of a PVC.
        """
        if not (found := URI.fullmatch(uri)):
            raise InvalidSetting(f"data.uri '{uri}' is not valid: write pvc://CLAIM/PATH, without . and .. in the path")
        return cls(found["claim"], found["path"] or "")
