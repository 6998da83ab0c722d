"""`kubetrain translate`: the manifest of a hand-written job as a file that describes a run."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kubetrain_pipelines.requests.request_file import SUFFIXES
from kubetrain_pipelines.requests.yaml_text import to_yaml
from kubetrain_pipelines.translate.read_manifests import read_manifests
from kubetrain_pipelines.translate.translation import Translation, translate
from kubetrain_trainer.durable_files import write_atomically
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

STDIN = "-"


def translate_and_show(files: Sequence[Path], output: Path | None) -> None:
    translation = translate(read_manifests(_texts(files)))
    content = to_yaml({"pipeline": translation.pipeline, **translation.request})
    if output:
        _write(output, content)
    else:
        print(content, end="")
    print("\n".join(report(translation, output)), file=sys.stderr)


def report(translation: Translation, output: Path | None) -> Iterator[str]:
    """Yield what the file does not have, and what to do next."""
    becomes = "a job of kubetrain train" if translation.command else f"a {translation.pipeline} run"
    yield f"{translation.source} becomes {becomes}"
    if translation.unmapped:
        yield "\nFields without a counterpart:"
    for item in translation.unmapped:
        yield f"  {item.path}{' = ' if item.value else ''}{item.value}"
        if item.instead:
            yield f"      {item.instead}"
    if translation.notes:
        yield "\nCheck:"
    yield from (f"  {note}" for note in translation.notes)
    yield "\nNext:"
    if translation.missing:
        yield f"  fill in {' and '.join(translation.missing)}"
    yield from _commands(translation, shlex.quote(str(output or "FILE")))


def _commands(translation: Translation, file: str) -> Iterator[str]:
    if not translation.command:
        yield f"  kubetrain render {file}"
        yield f"  kubetrain submit {file}"
        return
    yield "  run this command, with --dry-run before -- to print the manifests first:"
    options = " ".join(["--cluster", *map(shlex.quote, translation.options)])
    yield f"  kubetrain train {file} {options} -- {shlex.join(translation.command)}"


def _texts(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for file in files:
        is_stdin = str(file) == STDIN
        try:
            content = sys.stdin.buffer.read() if is_stdin else file.read_bytes()
            yield "the standard input" if is_stdin else str(file), content.decode()
        except UnicodeDecodeError:
            raise InvalidSetting(f"{file} is not text in UTF-8: save it as UTF-8") from None
        except OSError as error:
            raise InvalidSetting(f"{file} cannot be read ({error}): pass the YAML file of a job") from error


def _write(output: Path, content: str) -> None:
    """
    Raises:
        KubetrainError: if the file exists with other content, which the user may have edited.
    """
    if output.suffix not in SUFFIXES:
        raise InvalidSetting(f"{output} does not end in .yaml: name a file such as {output.stem}.yaml")
    try:
        if output.exists() and output.read_bytes() != content.encode():
            raise KubetrainError(f"{output} exists and differs: choose another --output, or delete it")
        write_atomically(output, content.encode())
    except OSError as error:
        raise KubetrainError(f"{output} cannot be written ({error}): choose another --output") from error
