"""The name of a job and its labels, which depend on its run and stage alone."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from kubetrain_components.jobs.annotations import LABEL_PREFIX, RUN_ID, STAGE

# A name of these parts, with the attempt, role and index of a pod, has at most 63 characters.
NAME_PART_LENGTH = 16
RUN_PREFIX_LENGTH = 4
RUN_HASH_LENGTH = 8
LABEL_LENGTH = 63
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """A job's stage and run. Its name depends on nothing else, so that a restarted launcher finds the job."""

    pipeline: str
    stage: str
    run_id: str
    dataset: str = ""
    attempt: int = 1

    @property
    def name(self) -> str:
        parts = [
            slug(self.pipeline, NAME_PART_LENGTH),
            slug(self.stage, NAME_PART_LENGTH),
            slug(self.run_id, RUN_PREFIX_LENGTH),  # for readers; the hash distinguishes runs
            _hash(self.run_id),
            f"a{self.attempt}" if self.attempt > 1 else "",
        ]
        return "-".join(part for part in parts if part)

    def labels(self, spec_hash: str) -> dict[str, str]:
        values = {"pipeline": self.pipeline, "stage": self.stage, "dataset": self.dataset, "spec-hash": spec_hash}
        slugs = {LABEL_PREFIX + key: slug(value, LABEL_LENGTH) for key, value in values.items() if value}
        return {RUN_ID: run_label(self.run_id), **slugs}

    def annotations(self) -> dict[str, str]:
        """Return the full values, of which labels take only slugs, except for the ID of the run."""
        values = {"run-id": self.run_id, "pipeline": self.pipeline, "stage": self.stage, "dataset": self.dataset}
        return {LABEL_PREFIX + key: value for key, value in values.items() if value}

    @property
    def selector(self) -> str:
        """The labels of all attempts of this run's stage."""
        labels = self.labels("")
        return ",".join(f"{key}={labels[key]}" for key in (RUN_ID, STAGE))

    def next_attempt(self) -> Self:
        return replace(self, attempt=self.attempt + 1)

    def has_attempt(self, name: str) -> bool:
        """Return True if a job of this name is an attempt of this stage and run."""
        return re.fullmatch(rf"{re.escape(replace(self, attempt=1).name)}(-a\d+)?", name) is not None

    def newest_of(self, names: Iterable[str]) -> Self:
        """Return the newest attempt among these names of jobs, or this one if they name no later attempt."""
        first = re.escape(replace(self, attempt=1).name)
        matches = (re.fullmatch(rf"{first}-a(\d+)", name) for name in names)
        return replace(self, attempt=max([self.attempt, *(int(match[1]) for match in matches if match)]))


def run_label(run_id: str) -> str:
    """Return the label of a run: its ID, or a hash as well if a label cannot hold the ID. No two runs share one."""
    if len(run_id) <= LABEL_LENGTH and LABEL_VALUE.fullmatch(run_id):
        return run_id
    return f"{slug(run_id, LABEL_LENGTH - RUN_HASH_LENGTH - 1)}-{_hash(run_id)}".strip("-")


def _hash(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:RUN_HASH_LENGTH]


def slug(text: str, length: int) -> str:
    """Return the text in the form that Kubernetes accepts in names and labels."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:length].strip("-")
