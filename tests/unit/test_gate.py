"""The gate: which conditions it has, and which models they let through."""

import re
from typing import Any

import pytest

from kubetrain_components.run.gate import Gate, Latest, Limit, NotWorse, parse_gate
from kubetrain_components.run.parameters import RunParameters
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig

OWN = TrainConfig(model="team.task:build", metric="max:miou")
BEFORE = Latest(version="v7", metrics={"accuracy": 0.9, "loss": 0.3, "miou": 0.7})


def gate(text: str, config: TrainConfig = OWN) -> Gate:
    return parse_gate(text, config)


def test_conditions_add_up() -> None:
    limits = (("accuracy", ">=", 0.9), ("loss", "<", 0.3), ("mAP@0.5", ">", 0.7), ("error", "<=", 1e-3))
    parsed = gate("accuracy>=0.9, loss < .3,mAP@0.5> 0.7 , error<=1e-3").conditions
    assert parsed == tuple(Limit(metric=metric, operator=operator, value=value) for metric, operator, value in limits)
    assert gate("").conditions == gate(" ").conditions == ()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("not worse than latest", ("miou", False, 0.0)),
        ("not worse than latest by 0.005", ("miou", False, 0.005)),
        ("loss not worse than latest by 1", ("loss", True, 1.0)),
        ("word_error  not worse than latest", ("word_error", True, 0.0)),
        ("top5_accuracy not worse than latest", ("top5_accuracy", False, 0.0)),
        ("bleu(max) not worse than latest by 2", ("bleu", False, 2.0)),
        ("miou (min) not worse than latest", ("miou", True, 0.0)),
    ],
)
def test_a_comparison_knows_its_metric_and_its_direction(text: str, parsed: tuple[str, bool, float]) -> None:
    metric, prefers_less, tolerance = parsed
    (condition,) = gate(text).conditions
    assert condition == NotWorse(metric=metric, prefers_less=prefers_less, tolerance=tolerance)
    assert gate(text).compares
    assert not gate("accuracy>=0.9").compares


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accuracy=0.9", "'accuracy=0.9' is not a condition: write conditions such as accuracy>=0.9"),
        ("accuracy==0.9", "'accuracy==0.9' is not a condition"),
        ("accuracy>=0,9", "'9' is not a condition"),
        ("accuracy>=0.9,", "'' is not a condition"),
        ("accuracy>=high", "'accuracy>=high' needs a number, not 'high'"),
        ("loss<", "'loss<' needs a number, not ''"),
        ("loss<nan", "'loss<nan' needs a number, not 'nan'"),
        ("accuracy better than latest", "'accuracy better than latest' is not a condition"),
        ("not worse than latest by", "'not worse than latest by' needs a number"),
        ("not worse than latest by -1", "cannot be worse by -1"),
        ("not worse than latest by 5%", "needs a number, not '5%'"),
        ("bleu not worse than latest", r"whether a high or a low 'bleu' is better: write bleu\(max\) or bleu\(min\)"),
        ("bleu(up) not worse than latest", r"write bleu\(max\)"),
    ],
)
def test_what_is_not_understood_is_named(text: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"model.gate: .*{says}"):
        gate(text)


@pytest.mark.parametrize(
    ("wanted", "config", "says"),
    [
        ("acuracy>=0.9", {}, "no metric 'acuracy': did you mean 'accuracy'"),
        ("f1 not worse than latest", {}, "no metric 'f1'"),
        ("loss<1, accuracy>=90", {}, "no accuracy is at least 90, because it is from 0 to 1: 90 % is 0.9"),
        ("accuracy>1.5", {}, "no accuracy is above 1.5, because it is from 0 to 1: 1.5 % is 0.015"),
        ("accuracy>1", {}, "no accuracy is above 1, .*: write conditions such as"),
        ("accuracy>=1000", {}, "no accuracy is at least 1000, .*: write conditions such as"),
        ("accuracy<0", {}, "no accuracy is below 0"),
        ("accuracy<=-1", {}, "no accuracy is at most -1"),
        ("loss<0", {}, "no loss is below 0, because it is at least 0"),
        ("loss<=-0.1", {}, "no loss is at most -0.1"),
        ("not worse than latest", {"entry": {"script": "train.py"}}, "add evaluation to train.entry"),
    ],
)
def test_a_gate_that_no_model_could_pass_is_refused_before_the_run(
    wanted: str, config: dict[str, Any], says: str
) -> None:
    uris = {"dataset_uri": "s3://b/d", "model_uri": "s3://b/m", "framework": "pytorch"}
    with pytest.raises(InvalidSetting, match=says):
        RunParameters(**uris, gate=wanted, train_config=TrainConfig.from_dict(config))
    RunParameters(**uris, gate=wanted, train_config=TrainConfig(entry={"script": "a", "evaluation": {"script": "b"}}))


@pytest.mark.parametrize("text", ["accuracy>=1", "accuracy>0.999", "accuracy<=0", "loss<=0", "loss>100"])
def test_a_gate_that_a_model_could_just_pass_is_accepted(text: str) -> None:
    gate(text, config=TrainConfig())


def test_your_own_code_may_measure_in_percent() -> None:
    in_percent, negative = gate("accuracy>=90"), gate("loss<0", config=TrainConfig(entry={"script": "train.py"}))
    assert not in_percent.judge({"accuracy": 91.0}, None).refusal
    assert not negative.judge({"loss": -1.0}, None).refusal


@pytest.mark.parametrize(
    ("text", "metrics"),
    [
        ("accuracy>=0.9, loss<0.3", {"accuracy": 0.9, "loss": 0.29}),
        ("accuracy>0.89", {"accuracy": 0.9}),
        ("not worse than latest", {"miou": 0.7}),
        ("not worse than latest by 0.01", {"miou": 0.69}),
        ("accuracy not worse than latest by 0.005", {"accuracy": 0.895}),
        ("loss not worse than latest by 0.1", {"loss": 0.4}),
        ("loss not worse than latest", {"loss": 0.0}),
    ],
)
def test_a_good_model_passes(text: str, metrics: dict[str, float]) -> None:
    judgment = gate(text).judge(metrics, BEFORE)
    assert not judgment.refusal
    assert len(judgment.conditions_met) == text.count(",") + 1


@pytest.mark.parametrize(
    ("text", "metrics", "says"),
    [
        ("accuracy>=0.9", {"accuracy": 0.88}, r"test accuracy 0\.8800 is below 0\.9000 by 0\.0200: train longer"),
        ("loss<0.3", {"loss": 0.3}, r"test loss 0\.3000 is not below 0\.3000"),
        ("loss<=0.3", {"loss": 0.35}, r"test loss 0\.3500 is above 0\.3000 by 0\.0500"),
        ("error<=1e-6", {"error": 3e-6}, "test error 3e-06 is above 1e-06 by 2e-06"),
        ("acuracy>=0.9", {"accuracy": 1.0}, r"no metric 'acuracy': did you mean 'accuracy'\?$"),
        ("accuracy>=0.9", {}, "the model was not evaluated: write metrics.json, or add evaluation"),
        ("accuracy>=0", {"accuracy": None}, "accuracy that is not a number: .* so lower train.learning_rate$"),
        ("loss<9", {"loss": float("nan")}, "loss that is not a number: .* so lower train.learning_rate$"),
        ("miou not worse than latest by 9", {"miou": None}, "miou that is not a number: check how your code computes"),
        ("not worse than latest", {"miou": 0.69}, r"test miou 0\.6900 is worse by 0\.0100 than 0\.7000 of .*, v7"),
        ("not worse than latest by 0.005", {"miou": 0.69}, r"than 0\.7000 .* \(by up to 0\.0050 is allowed\)"),
        ("loss not worse than latest", {"loss": 0.31}, r"test loss 0\.3100 is worse by 0\.0100 than 0\.3000"),
        (
            "f1 not worse than latest",
            {"f1": 1.0},
            r"the latest model, v7, cannot be compared with \(it has no metric 'f1'\): to replace it, run once",
        ),
    ],
)
def test_a_bad_model_does_not(text: str, metrics: dict[str, float | None], says: str) -> None:
    assert re.match(f"the model was not published, because .*{says}", gate(text).judge(metrics, BEFORE).refusal)


def test_each_condition_that_is_not_met_is_told_and_so_is_what_is_met() -> None:
    wanted = gate("accuracy>=0.95, loss<0.1, miou>=0.5, not worse than latest")
    judgment = wanted.judge({"accuracy": 0.9, "loss": 0.2, "miou": 0.6}, BEFORE)
    parts = judgment.refusal.split("; ")
    first, *others = parts
    assert first.endswith(", because test accuracy 0.9000 is below 0.9500 by 0.0500")
    assert [part.split()[1] for part in others] == ["loss", "miou"]
    assert others[-1].endswith(": train longer, or change model.gate")
    assert judgment.conditions_met == ["test miou 0.6000 is at least 0.5000"]


def test_a_remedy_follows_what_it_is_for() -> None:
    wanted = gate("loss<0.1, auc>=0.5, error<0.1, f2>0")
    missed = wanted.judge({"loss": 0.2, "auc": None, "error": 0.2, "f1": 0.9}, BEFORE).refusal
    assert missed.partition(", because ")[2] == (
        "test loss 0.2000 is above 0.1000 by 0.1000; test error 0.2000 is above 0.1000 by 0.1000: train longer, or "
        "change model.gate; the evaluation has a value of auc that is not a number: check how your code computes it; "
        "the evaluation has no metric 'f2': did you mean 'f1'?"
    )
    unmeasured = gate("loss<0.1, auc>=0.5").judge({}, BEFORE).refusal
    assert "because the model was not evaluated: write" in unmeasured


def test_without_a_latest_model_there_is_nothing_to_be_worse_than() -> None:
    (met,), refusal = gate("not worse than latest").judge({"miou": 0.1}, Latest())
    assert "no model is published yet" in met
    assert not refusal


@pytest.mark.parametrize(
    ("latest", "says"),
    [
        (Latest(version="v7", problem="model.pt is damaged"), r"v7, cannot be compared with \(model.pt is damaged"),
        (Latest(version="", problem="latest.json is another program's"), "latest.json is another program's"),
        (Latest(version="v7", metrics={"miou": None}), r"v7, .* \(it has a value of miou that is not a"),
        (None, "did not measure the latest model"),
    ],
)
def test_a_latest_model_that_could_not_be_measured_is_never_passed_over(latest: Latest | None, says: str) -> None:
    assert re.search(says, gate("not worse than latest").judge({"miou": 1.0}, latest).refusal)
