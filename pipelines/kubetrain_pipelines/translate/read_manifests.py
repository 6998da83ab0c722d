"""The manifests in files: the job to translate, its runtime, and what lies beside it."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.error import MarkedYAMLError
from yaml.parser import ParserError
from yaml.scanner import ScannerError

from kubetrain_components.jobs.job_kinds import TRAINING_API, TRAINING_KINDS, JobKind
from kubetrain_components.jobs.placement import is_gpu
from kubetrain_trainer.errors import InvalidSetting

ELASTIC_API = "elastic.pytorch.org/v1alpha1"
MPI_API = "kubeflow.org/v2beta1"
JOBS = {
    **{kind.value: (kind.traits.api_version,) for kind in (*TRAINING_KINDS, JobKind.TRAIN_JOB, JobKind.RAY_JOB)},
    JobKind.MPI_JOB.value: (TRAINING_API, MPI_API),
    "ElasticJob": (ELASTIC_API,),
}
"""The kinds that can be translated, with their API versions."""
KINDS = " or ".join([", ".join([*JOBS][:-1]), [*JOBS][-1]])
OTHER_JOBS = {"MXJob", "RayCluster", "Job", "JobSet"}

MAX_VALUES = 1_000_000
TIMESTAMP = "tag:yaml.org,2002:timestamp"
WITHOUT_BASE_60 = {
    "tag:yaml.org,2002:int": re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$"),
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
    ),
}


class Loader(yaml.SafeLoader):
    """Refuses an object that has a key twice, of which the first value would be dropped silently.

    As in Kubernetes, 12:30 and 2024-01-01 are texts, and no numbers of base 60 or times.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as its base class has it
        first: [(tag, WITHOUT_BASE_60.get(tag, pattern)) for tag, pattern in found if tag != TIMESTAMP]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (each for each, _ in node.value if isinstance(each, yaml.ScalarNode) and each.value != "<<"):
            if key.value in seen:
                raise ParserError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        return node


@dataclass(frozen=True)
class Manifests:
    job: dict[str, Any]
    others: list[dict[str, Any]]

    def runtime(self, kind: str, name: str) -> dict[str, Any]:
        """Return a runtime, empty if it is not in the files."""
        return next((other for other in self.others if other["kind"] == kind and name_of(other) == name), {})


def read_manifests(texts: Iterable[tuple[str, str]]) -> Manifests:
    """
    Args:
        texts: Name and content of each file.

    Raises:
        InvalidSetting: if a file is not a manifest, or the files do not have exactly one job that can be translated.
    """
    found = [manifest for name, text in texts for manifest in _documents(name, text)]
    jobs = [each for each in found if each["kind"] in JOBS]
    for item in found:
        if item["kind"] in OTHER_JOBS and not jobs:
            raise InvalidSetting(f"{described(item)} has no counterpart: only a {KINDS} can be translated")
    if len(jobs) != 1:
        raise InvalidSetting(
            f"the files have {len(jobs)} jobs ({', '.join(map(described, jobs))}): translate one at a time"
            if jobs
            else f"the files have no job to translate: pass the manifest of a {KINDS}"
        )
    expected = JOBS[jobs[0]["kind"]]
    if jobs[0].get("apiVersion") not in expected:
        raise InvalidSetting(
            f"{described(jobs[0])} has apiVersion '{jobs[0].get('apiVersion', '')}': convert it to "
            f"{' or '.join(expected)}"
        )
    return Manifests(jobs[0], [each for each in found if each is not jobs[0]])


def described(manifest: dict[str, Any]) -> str:
    return f"{manifest['kind']} {name_of(manifest)}".strip()


def name_of(manifest: dict[str, Any]) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _documents(name: str, text: str) -> Iterator[dict[str, Any]]:
    try:
        # JSON has only what Kubernetes knows: no dates, and only strings as keys.
        loaded = list(yaml.load_all(text, Loader))
        if _count(loaded, {}) > MAX_VALUES:
            raise ValueError("its aliases stand for too many values")
        documents = json.loads(json.dumps(loaded, default=str))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidSetting(f"{name} is not valid YAML{_place(error)}: correct it, or render it first") from None
    for number, document in enumerate(documents, start=1):
        if document is not None:
            yield from _flattened(_without_nulls(document), f"document {number} of {name}")


def _count(value: Any, counts: dict[int, int]) -> int:
    """Return the number of values, with each alias as what it stands for: nested ones soon fill any memory."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counts:
        counts[id(value)] = 1 + sum(
            _count(item, counts) for item in (value.values() if isinstance(value, dict) else value)
        )
    return counts[id(value)]


def _place(error: Exception) -> str:
    """Return the problem without the text around it, and without names of aliases, which may be secrets."""
    if not isinstance(error, MarkedYAMLError) or not error.problem_mark:
        return ""
    problem = f"{error.problem} " if isinstance(error, ScannerError | ParserError) else ""
    return f" ({problem}in line {error.problem_mark.line + 1})"


def _flattened(document: Any, place: str) -> Iterator[dict[str, Any]]:
    """Yield a manifest, or those of a List, as kubectl prints it."""
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise InvalidSetting(f"{place} is not a Kubernetes manifest: it needs apiVersion, kind and metadata")
    items = document.get("items")
    if not document["kind"].endswith("List") or not isinstance(items, list):
        yield document
        return
    for item in items:
        yield from _flattened(item, place)


def _without_nulls(value: Any) -> Any:
    """Leave out nulls, which Kubernetes takes for missing fields, except for GPUs that a job is meant to have."""
    if isinstance(value, dict):
        for name in (name for name, each in value.items() if each is None and is_gpu(str(name))):
            raise InvalidSetting(f"{name} has no value: write how many GPUs a pod has")
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(item) for item in value if item is not None] if isinstance(value, list) else value
