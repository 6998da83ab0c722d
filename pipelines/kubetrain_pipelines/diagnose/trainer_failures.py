"""What the trainers themselves recognize: its words are those of their failures, so that both say the same."""

from kubetrain_trainer.failures import KNOWN_FAILURES

PLACE = "{where}"
_BY_NAME = {known.name: known for known in KNOWN_FAILURES}


def patterns_of(name: str) -> tuple[str, ...]:
    return _BY_NAME[name].patterns


def said(name: str) -> str:
    """Return the text of the trainers' error, from which only the place is left out."""
    return f"error: *{_sentence(name)[0].replace(PLACE, '*')}"


def explanation(name: str) -> str:
    words = _sentence(name)[0].replace(f" {PLACE}", "")
    return f"{words[0].upper()}{words[1:]}."


def remedy(name: str) -> str:
    words = _sentence(name)[1]
    return f"{words[0].upper()}{words[1:]}."


def _sentence(name: str) -> tuple[str, str]:
    words, _, remedy = _BY_NAME[name].sentence.partition(": ")
    return words, remedy
