"""Write what a diagnosis has read into one archive, without secrets, for the people who help."""

import io
import json
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from kubetrain_components.manifest import APPLIED
from kubetrain_components.secret_values import VARIABLES, hidden_variable, without_secrets
from kubetrain_pipelines.diagnose.diagnosis import Diagnosis
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.model_folder import HIDDEN

REPEATED = ("managedFields", APPLIED)
"""Fields of the metadata in which the API server and kubectl repeat the object."""


def write_bundle(diagnosis: Diagnosis, path: Path) -> None:
    """
    Raises:
        KubetrainError: if the archive cannot be written.
    """
    if path.is_dir():
        raise KubetrainError(f"cannot write {path} (it is a folder): choose a file with --bundle")
    draft = path.with_name(f".{path.name}.partial")
    try:
        with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
            _write(archive, diagnosis)
        draft.rename(path)
    except OSError as error:
        raise KubetrainError(f"cannot write {path} ({error.strerror}): choose another file with --bundle") from error
    finally:
        draft.unlink(missing_ok=True)


def _write(archive: tarfile.TarFile, diagnosis: Diagnosis) -> None:
    case = diagnosis.case
    reports = {"outcome": case.outcome, "reports": case.statements, "not read": case.gaps}
    causes = [cause.to_dict() for cause in diagnosis.causes]
    for name, content in {**case.documents, "reports.json": reports, "diagnosis.json": causes}.items():
        _add(archive, name, io.BytesIO(json.dumps(hidden("", content), indent=2).encode()))
    for number, (name, path) in enumerate(case.logs.items()):
        with path.open("rb") as log, tempfile.TemporaryFile() as copy:
            copy.writelines(_hidden_lines(log))
            _add(archive, f"logs/{number}-{Path(name).name}", copy)


def _hidden_lines(log: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines without secrets, of which a private key takes several."""
    is_key = False
    for line in log:
        is_key = (is_key or b"PRIVATE KEY-----" in line) and b"-----END" not in line
        yield f"{HIDDEN}\n".encode() if is_key else hidden("", line.decode(errors="replace")).encode()


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = content.seek(0, io.SEEK_END), int(time.time())
    content.seek(0)
    archive.addfile(member, content)


def hidden(path: str, value: Any) -> Any:
    """Return a document without what may be secret. The names of variables stay, and values that are none."""
    if isinstance(value, Mapping):
        return {name: hidden(f"{path}.{name}", each) for name, each in value.items() if name not in REPEATED}
    if isinstance(value, list) and path.rpartition(".")[2] == VARIABLES:
        return [hidden_variable(item) for item in value]
    if isinstance(value, list | tuple) and not all(isinstance(item, str) for item in value):
        return [hidden(path, item) for item in value]
    return without_secrets(path, list(value) if isinstance(value, tuple) else value)
