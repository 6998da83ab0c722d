"""Recognize what may be a secret, so that it is neither printed nor written to a parameter file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kubetrain_trainer.output.model_folder import HIDDEN

UNCOUNTED = r"(?<!max[ _-])(?<!min[ _-])(?<!num[ _-])(?<!\bn[ _-])"
"""Not in a number of things, such as num_keys."""
OF_TEXT = "MAX|MIN|NUM|N|NEW|PER|TOTAL|BATCH|TRAIN|CONTEXT|INPUT|OUTPUT|SPECIAL|STOP"
ACCESS = "access|api|auth|bearer|bot|deploy|github|gitlab|hf|hub|huggingface|oauth|refresh|registry|service|slack"
TOKENS = (
    rf"(?:(?<![a-z])(?:{ACCESS})[ _-]?tokens"
    rf"|(?-i:(?<![A-Z0-9_])(?!(?:[A-Z0-9]+_)*(?:{OF_TEXT})_)(?:[A-Z0-9]+_)+TOKENS))"
)
"""Tokens that give access, and those of variables in capitals, but not the tokens of a text, such as max_tokens."""
NOUN = r"key|secret|passw(?:or)?d|passphrase|pwd|dsn|webhook|credential|(?<![a-z])creds?|connection[ _-]?string"
ENDING = rf"(?:{NOUN}|token|{UNCOUNTED}(?:{NOUN})s|{TOKENS})\d*"
"""The end of a name of a secret."""
WORD = (
    rf"(?<![a-z0-9])(?:{ENDING}|(?:pass|(?:pat|jwt|cookie|authorization)s?)\d*)(?![a-z0-9])"
    r"|(?-i:(?<![A-Z0-9_])[A-Z0-9_]*(?:PASS|_AUTH)(?![A-Z0-9_]))"
)
"""Or the name of a variable in capitals, such as PGPASS or REDIS_AUTH."""
ENDS_IN_SECRET = re.compile(rf"(?i){UNCOUNTED}{ENDING}$")
SECRET_NAME = re.compile(rf"(?i){ENDING}$|{WORD}")
NOT_SECRET = {
    *("GOOGLE_APPLICATION_CREDENTIALS", "imagePullSecrets"),
    *("key", "keys", "topologyKey", "matchLabelKeys", "mismatchLabelKeys"),
}
"""The path of a file, the names of secrets, and fields of tolerations and selectors."""
REFERENCE = r"[\"']?\$"
"""The begin of a reference to another variable."""
VARIABLE = re.compile(r"\$\(\w+\)")
VALUE = rf"(?!{REFERENCE})(?:'[^']*'|\"[^\"]*\"|\S+)"
RANDOM = r"(?![/(\[{])(?=\S*\d)[^\s,;]{16,}"
"""What is long and has digits. Other words are those of a sentence, such as: missing key: image."""
SENTENCE = r"(?!(?:a|are|cannot|error|failed|for|has|in|is|missing|must|not|of|the|to|was|with)\b)"
"""Words after which no secret follows, such as: login failed for user."""
PRIVATE_KEY = "-----BEGIN [A-Z ]*PRIVATE KEY-----"
IN_TEXT = [
    re.compile(rf"(?i)({before}){secret}")
    for before, secret in (
        (r"(?<![\w.-])keys?(?::| for \S+)\s+", RANDOM),
        (rf"(?!(?<![\w.-])keys?:\s)(?:{ENDING}|{WORD})['\"]?\s*[=:]\s*(?:(?:bearer|basic)\s+)?+", VALUE),
        (rf"[-_](?:{ENDING}|pass)\s+", rf"{SENTENCE}{VALUE}"),
        (PRIVATE_KEY, r"[\s\S]*?(?=-----END|\Z)"),
        (r"['\"]auth['\"]\s*:\s*", VALUE),
        (r"(?<!\S)--auth[\s=]+", rf"(?![-&|;]){VALUE}"),
        (r"(?:[?&][\w-]*signature|(?<![\w-])sig)=", rf"(?!{REFERENCE})[^\s&'\"]+"),
        (r"\b(?:bearer|login)\s+", rf"(?![-&|;]){SENTENCE}{VALUE}"),
        (r"(?<!\S)(?:-u|--user)[= ]*[^\s:\d][^\s:]*:", VALUE),
        (r"://(?!git@)(?:[^/\s:@]*:)?", rf"(?!{REFERENCE})[^\s@/]+(?=@)"),
        (r"://[^/\s:@]*:", rf"(?!{REFERENCE})\S+(?=@)"),
        (r"//hooks\.slack\.com/services/", r"\S+"),
        (
            "",
            r"\b(?:hf_|gh[a-z]_|github_pat_|glpat-|sk-|[sr]k_live_|npm_|dapi|xapp-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ)[\w.-]{16,}",
        ),
    )
]
"""A secret in a text, with what is before it: a name, an option, a scheme, a user; or what looks like a token."""
IN_VARIABLES = re.compile(r"(^|\.)(env|httpHeaders)(\[|$)")
COMMAND = re.compile(r"(^|\.)(command|args)(\[|$)")
OPTION = re.compile(r"--[A-Za-z][\w-]*=?|-[A-Za-z]")
VARIABLES = "env"
"""The field of a container that lists its variables."""


def is_secret(name: str, value: str) -> bool:
    """Return True if a variable, annotation or option of this name and value may be a secret."""
    return bool(value) and (_hidden(value) != value or (names_secret(name) and not VARIABLE.fullmatch(value)))


def hidden_variable(variable: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a container's variables, without its value if that may be a secret."""
    value = str(variable.get("value", ""))
    return {**variable, "value": HIDDEN} if is_secret(str(variable.get("name")), value) else dict(variable)


def names_secret(name: str) -> bool:
    """Return True if a text of this name may be a secret."""
    return name not in NOT_SECRET and SECRET_NAME.search(name) is not None


def hides_all(name: str) -> bool:
    """Return True if numbers, lists and objects of this name may be secrets too.

    Names that only contain such a word, such as key_dim and pad_token_id, are those of numbers that a model needs.
    """
    return name not in NOT_SECRET and ENDS_IN_SECRET.search(name) is not None


def has_secret(command: Iterable[Any]) -> bool:
    """Return True if the words of a command may contain a secret."""
    return is_secret("", " ".join(str(word) for word in command))


def without_secrets(path: str, value: Any) -> Any:
    """Return a value for people. Of a command it has only the program and the names of options."""
    if IN_VARIABLES.search(path) and ".valueFrom" not in path:
        return HIDDEN
    if COMMAND.search(path):
        words = value if isinstance(value, list) else [value]
        return outline([str(word) for word in words], has_program=path.endswith("command"))
    if names_secret(path.rpartition(".")[2]) and not isinstance(value, bool | None):
        return HIDDEN
    if isinstance(value, list):
        return [_hidden(item) if isinstance(item, str) else item for item in value]
    return _hidden(value) if isinstance(value, str) else value


def outline(words: list[str], *, has_program: bool) -> list[str]:
    """Return the program of a command and the names of its options, without their values."""
    program = re.match(r"[^\s=]*(?=\s|$)", words[0]) if words and has_program else None
    shown = [program[0]] if program else []
    for word in words[len(shown) :]:
        option = OPTION.match(word)
        shown.append(option[0] if option else HIDDEN)
    return [word for word, before in zip(shown, ["", *shown], strict=False) if (word, before) != (HIDDEN, HIDDEN)]


def masked(words: Sequence[str]) -> list[str]:
    """Return the words of a command without what may be a secret: by its look, or by the option before it."""
    return [_masked(before, word) for before, word in zip(["", *words], words, strict=False)]


def _masked(before: str, word: str) -> str:
    is_value = before.startswith("-") and "=" not in before and not word.startswith("-")
    of_option = is_value and (names_secret(before.lstrip("-")) or _hidden(f"{before} {word}") != f"{before} {word}")
    return HIDDEN if of_option else _hidden(word)


def _hidden(text: str) -> str:
    for pattern in IN_TEXT:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def shareable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a training, by their own names or those for users, without what may be a secret: values
    with the name or the look of one."""
    return {name: _shown_setting(name, value) for name, value in settings.items()}


def shareable_own(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of your own pipeline without what may be a secret."""
    return {name: _shown(name, value) for name, value in parameters.items()}


def _shown_setting(name: str, value: Any) -> Any:
    match name:
        case "model_args" | "model.args" | "pods.env":
            return _shown("", value)
        case "entry" | "train.entry":
            return _shown_entry(value)
        case "pods.evaluation" | "storage.transfer":
            return {key: _shown_setting(f"pods.{key}", inner) for key, inner in value.items()}
    return value


def _shown(name: str, value: Any) -> Any:
    """
    Args:
        name: The name of the value, after those above it: what is below the name of a secret is one.
    """
    if isinstance(value, str):
        return HIDDEN if is_secret(name, value) else value
    if value and value is not True and hides_all(name):
        return HIDDEN
    if isinstance(value, Mapping):
        above = f"{name}." if names_secret(name) else ""
        return {key: _shown(f"{above}{key}", each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, item) for item in value]
    return value


def _shown_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(entry)
    for name in {"args", "command"} & entry.keys():
        shown[name] = masked([str(word) for word in entry[name]])
    return shown | ({"evaluation": _shown_entry(entry["evaluation"])} if "evaluation" in entry else {})
