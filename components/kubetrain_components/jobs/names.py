"""Names that Kubernetes accepts: those of objects and of images."""

import re

from kubetrain_components.urls import is_placeholder
from kubetrain_trainer.errors import InvalidSetting

OBJECT_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
HOST = r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\])(?::\d+)?"
IMAGE = re.compile(
    rf"(?:{HOST}/)?(?=[^:@]{{1,255}}(?:[:@]|$)){PART}(?:/{PART})*(?::\w[\w.-]{{0,127}})?(?:@\w+:[0-9a-f]{{32,}})?",
    re.ASCII,
)


def check_object_name(setting: str, name: str) -> None:
    if not OBJECT_NAME.fullmatch(name):
        raise InvalidSetting(
            f"{setting} '{name}' is not a valid object name: use up to 253 characters of a-z, 0-9, '-' and '.'"
        )


def check_image(setting: str, name: str) -> None:
    if is_placeholder(name):
        raise InvalidSetting(f"{setting} '{name}' is a placeholder: set it to an image of yours")
    if not IMAGE.fullmatch(name):
        raise InvalidSetting(f"{setting} '{name}' is not a valid name of an image: write [HOST/]NAME[:TAG]")
