"""The gate: conditions that a model must meet to be published, separated by commas.

accuracy>=0.9, loss<0.3, not worse than latest by 0.005, perplexity(min) not worse than latest
"""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from kubetrain_components.shown_values import number
from kubetrain_trainer.errors import InvalidSetting, did_you_mean
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.metric import DIRECTIONS, direction_of
from kubetrain_trainer.settings.model_names import CLASSIFIER_METRICS, is_own_code

OPERATORS = {
    ">=": (operator.ge, "at least"),
    ">": (operator.gt, "above"),
    "<=": (operator.le, "at most"),
    "<": (operator.lt, "below"),
}
METRIC = r"(?P<metric>[^\s<>=(),]+)"
LIMIT = re.compile(rf"{METRIC}\s*(?P<operator>[<>]=?)\s*(?P<value>[^<>=]*)")
COMPARISON = re.compile(
    rf"(?:{METRIC}\s*(?:\((?P<best>[^)]*)\))?\s+)?not worse than latest(?:\s+by\b\s*(?P<value>.*))?"
)
BEST = {**DIRECTIONS, "f1": "max", "auc": "max", "iou": "max", "perplexity": "min"}
"""Whether the max or the min of a metric is best, by the ending of its name."""
EXAMPLE = "write conditions such as accuracy>=0.9, loss<0.3, not worse than latest by 0.005"
NOT_GOOD_ENOUGH = "train longer, or change model.gate"

Metrics = Mapping[str, float | None]
"""Values by name; None, as in JSON, for a value that is not a number."""


@dataclass(frozen=True, kw_only=True)
class Latest:
    """The latest model on the test split of this run."""

    version: str = ""
    """Empty if none is published."""
    metrics: Metrics = field(default_factory=dict)
    problem: str = ""
    """Why it has no metrics."""


class Verdict(NamedTuple):
    is_met: bool
    says: str
    remedy: str = ""


class Judgment(NamedTuple):
    conditions_met: list[str]
    """The sentences of the conditions that are met."""
    refusal: str
    """Each condition that is not met, by how much, and what to do; empty: the model may be published."""


class Condition(Protocol):
    def judge(self, metrics: Metrics, latest: Latest | None) -> Verdict: ...


@dataclass(frozen=True, kw_only=True)
class Limit:
    metric: str
    operator: str
    value: float

    def judge(self, metrics: Metrics, latest: Latest | None) -> Verdict:
        value, lack = _measured(metrics, self.metric)
        if lack:
            return _not_measured(metrics, self.metric, lack)
        subject, limit = f"test {self.metric} {number(value)}", number(self.value)
        holds, words = OPERATORS[self.operator]
        if holds(value, self.value):
            return Verdict(True, f"{subject} is {words} {limit}")
        if value == self.value:
            return Verdict(False, f"{subject} is not {words} {limit}", NOT_GOOD_ENOUGH)
        side = "below" if value < self.value else "above"
        return Verdict(False, f"{subject} is {side} {limit} by {number(abs(value - self.value))}", NOT_GOOD_ENOUGH)


@dataclass(frozen=True, kw_only=True)
class NotWorse:
    metric: str
    prefers_less: bool
    tolerance: float

    def judge(self, metrics: Metrics, latest: Latest | None) -> Verdict:
        value, lack = _measured(metrics, self.metric)
        if lack:
            return _not_measured(metrics, self.metric, lack)
        if latest is None:
            return Verdict(
                False, "the evaluation did not measure the latest model", "evaluate with this release's image"
            )
        if not latest.version and not latest.problem:
            return Verdict(True, "no model is published yet to which this one could be worse")
        before, lack = _measured(latest.metrics, self.metric)
        if reason := latest.problem or (lack and f"it has {lack}"):
            return Verdict(
                False,
                f"the latest model, {latest.version or 'of unknown version'}, cannot be compared with ({reason})",
                "to replace it, run once without this condition",
            )
        return self._compare(value, before, latest.version)

    def _compare(self, value: float, before: float, version: str) -> Verdict:
        worse_by = value - before if self.prefers_less else before - value
        subject, told = f"test {self.metric} {number(value)}", f"{number(before)} of the latest model, {version}"
        allowed = f" (by up to {number(self.tolerance)} is allowed)" if self.tolerance else ""
        if worse_by <= self.tolerance or math.isclose(worse_by, self.tolerance, rel_tol=1e-9):
            return Verdict(True, f"{subject} is not worse than {told}{allowed}")
        return Verdict(False, f"{subject} is worse by {number(worse_by)} than {told}{allowed}", NOT_GOOD_ENOUGH)


@dataclass(frozen=True)
class Gate:
    conditions: tuple[Condition, ...]

    @property
    def compares(self) -> bool:
        """True if the evaluation also has to measure the latest model."""
        return any(isinstance(condition, NotWorse) for condition in self.conditions)

    def judge(self, metrics: Metrics, latest: Latest | None) -> Judgment:
        """
        Args:
            latest: None if the evaluation did not measure it.
        """
        verdicts = [condition.judge(metrics, latest) for condition in self.conditions]
        missed = [verdict for verdict in verdicts if not verdict.is_met]
        refusal = f"the model was not published, because {_with_remedies(missed)}" if missed else ""
        return Judgment([verdict.says for verdict in verdicts if verdict.is_met], refusal)


def _with_remedies(missed: Sequence[Verdict]) -> str:
    """Return what is not met, each once, with a remedy after those that share it."""
    by_remedy: dict[str, dict[str, None]] = {}
    for item in missed:
        by_remedy.setdefault(item.remedy, {})[item.says] = None
    return "; ".join(f"{'; '.join(said)}: {remedy}" for remedy, said in by_remedy.items())


def parse_gate(text: str, config: TrainConfig) -> Gate:
    """
    Raises:
        InvalidSetting: for a condition that cannot be understood, or that no evaluation of this training could meet.
    """
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    conditions = [_parse(part, config) for part in parts]
    gate = Gate(tuple(conditions))
    if not is_own_code(config):
        _check_metrics(conditions)
    if gate.compares and config.entry and "evaluation" not in config.entry:
        raise InvalidSetting(
            "model.gate compares with the latest model, which only an evaluation of your own can measure: add "
            "evaluation to train.entry"
        )
    return gate


def _parse(part: str, config: TrainConfig) -> Limit | NotWorse:
    if found := LIMIT.fullmatch(part):
        return Limit(metric=found["metric"], operator=found["operator"], value=_value(part, found["value"]))
    if found := COMPARISON.fullmatch(part):
        metric = found["metric"] or config.best_by.name
        best = _best(part, found["best"], metric, config)
        tolerance = _value(part, found["value"]) if found["value"] is not None else 0.0
        if tolerance < 0:
            raise InvalidSetting(f"model.gate: '{part}' cannot be worse by {tolerance:g}: write a number of 0 or more")
        return NotWorse(metric=metric, prefers_less=best == "min", tolerance=tolerance)
    raise InvalidSetting(f"model.gate: '{part}' is not a condition: {EXAMPLE}")


def _value(part: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidSetting(f"model.gate: '{part}' needs a number, not '{text.strip()}': {EXAMPLE}")
    return value


def _best(part: str, given: str | None, metric: str, config: TrainConfig) -> str:
    """Return whether the max or the min of the metric is best."""
    by_setting = config.best_by.direction if metric == config.best_by.name else ""
    best = given or by_setting or direction_of(metric, BEST)
    if best not in ("max", "min"):
        raise InvalidSetting(
            f"model.gate: '{part}' does not say whether a high or a low '{metric}' is better: write {metric}(max) or "
            f"{metric}(min)"
        )
    return best


def _check_metrics(conditions: Sequence[Limit | NotWorse]) -> None:
    """Refuse a metric that the built-in models do not have, and a limit that it never reaches.

    What your own code measures, perhaps an accuracy in percent, is known after its evaluation.
    """
    for condition in conditions:
        if condition.metric not in CLASSIFIER_METRICS:
            suggestion = did_you_mean(condition.metric, CLASSIFIER_METRICS)
            raise InvalidSetting(f"model.gate: the evaluation has no metric '{condition.metric}': {suggestion}")
        if isinstance(condition, Limit):
            _check_reachable(condition)


def _check_reachable(limit: Limit) -> None:
    least, greatest = CLASSIFIER_METRICS[limit.metric]
    holds, words = OPERATORS[limit.operator]
    if holds(least, limit.value) or holds(greatest, limit.value):
        return
    possible = f"at least {least:g}" if math.isinf(greatest) else f"from {least:g} to {greatest:g}"
    remedy = f"{limit.value:g} % is {limit.value / 100:g}" if greatest == 1 < limit.value <= 100 else EXAMPLE
    raise InvalidSetting(
        f"model.gate: no {limit.metric} is {words} {limit.value:g}, because it is {possible}: {remedy}"
    )


def _measured(metrics: Metrics, name: str) -> tuple[float, str]:
    """Return the value of a metric, and what is wrong with it, if anything."""
    if name not in metrics:
        return math.nan, f"no metric '{name}'"
    value = metrics[name]
    if value is None or not math.isfinite(value):
        return math.nan, f"a value of {name} that is not a number"
    return value, ""


def _not_measured(metrics: Metrics, name: str, lack: str) -> Verdict:
    if not metrics:
        return Verdict(False, "the model was not evaluated", "write metrics.json, or add evaluation to train.entry")
    return Verdict(False, f"the evaluation has {lack}", _remedy_of_lack(metrics, name))


def _remedy_of_lack(metrics: Metrics, name: str) -> str:
    if name not in metrics:
        return did_you_mean(name, metrics)
    if name in CLASSIFIER_METRICS:
        return "the training has probably diverged, so lower train.learning_rate"
    return "check how your code computes it"


def latest_of(evaluation: Mapping[str, Any]) -> Latest | None:
    """Return what evaluation.json says of the latest model, if it was measured."""
    return Latest(**evaluation["latest"]) if "latest" in evaluation else None
