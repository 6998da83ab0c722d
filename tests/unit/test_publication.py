"""The steps that judge and publish a model, and the page that says what became of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_components.evaluate_model.component import evaluate_model
from kubetrain_components.promote_model.component import promote_model
from kubetrain_components.promote_model.promote import Promotion
from kubetrain_components.promote_model.summary import how_to_load, publication_summary
from kubetrain_components.run.gate import Judgment
from kubetrain_components.run.site import MIRROR_VARIABLE, WORKSPACE_VARIABLE, lasting_uri
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig

DIGEST = "d" * 16
SCRIPT = {"entry": {"script": "train.py"}}
REUSED = {"uri": "s3://b/m/v7/", "run_id": "r7", "metrics": {"accuracy": 0.9, "loss": 0.3}, "dataset_digest": DIGEST}
EVALUATION = {
    "metrics": {"accuracy": 0.93, "loss": 0.2, "a|<b>": None},
    "intervals": {"accuracy": [0.91, 0.95], "loss": [None, None]},
    "dataset_digest": DIGEST,
}
PROMOTION = Promotion(version="v8", uri="s3://b/m/v8/", is_latest=True, before="v7")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with the model of a script, which measured its accuracy itself."""
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(tmp_path))
    output = TrainingOutput(tmp_path / "output" / "r")
    output.begin("pytorch", TrainConfig(**SCRIPT), DIGEST)
    checkpoint = output.write_checkpoint(TrainingProgress(step=1), {"world_size": 1, "metrics": {}}, lambda path: None)
    output.write_export(checkpoint, {}, lambda path: (path / "weights").touch())
    origin = {"checkpoint": checkpoint.name, "manifest_sha256": checkpoint.manifest_sha256, "split": "", "samples": 0}
    output.write_evaluation({**origin, **EVALUATION})
    return tmp_path


def asked(workspace: Path, reused: dict[str, Any] | None, gate: str = "") -> dict[str, Any]:
    model = {"uri": (workspace / "models").as_uri(), "gate": gate}
    return {"data": {"uri": "s3://b/d"}, "model": model, "train": {} if reused else SCRIPT}


def judge(workspace: Path, gate: str, reused: dict[str, Any] | None = None) -> Judgment:
    artifact = SimpleNamespace(path=str(workspace / "test_report"), log_metric=lambda name, value: None)
    model = {"manifest_sha256": TrainingOutput(workspace / "output" / "r").read_export()["manifest_sha256"]}
    judgment: Judgment = evaluate_model.python_func(
        **{"framework": "pytorch", "pipeline": "p", "run_id": "r", "run": asked(workspace, reused, gate)},
        **{"reused": reused or {}, "model": SimpleNamespace(metadata=model)},
        **{"dataset": {"digest": DIGEST}, "placement": {}, "latest": {}},
        **dict.fromkeys(("test_metrics", "confusion_matrix", "test_report"), artifact),
    )
    return judgment


def promote(workspace: Path, judgment: Judgment, reused: dict[str, Any] | None = None) -> tuple[str, str]:
    """Return the URI of the version and the page."""
    page = workspace / "publication"
    (uri,) = promote_model.python_func(
        **{"run": asked(workspace, reused), "run_id": "r", "reused": reused or {}},
        **{"image": "trainer:1", "image_id": "", **judgment._asdict(), "publication": SimpleNamespace(path=str(page))},
    )
    return uri, page.read_text()


def page_of(promotion: Promotion = PROMOTION) -> str:
    return publication_summary(promotion, [], EVALUATION, "s3://b/d", how_to_load(promotion.uri, "http://s3:9000"))


def test_a_refusal_is_in_the_report_and_fails_the_step_that_would_publish(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judgment = judge(workspace, "accuracy>=0.95, loss<0.3")
    report = (workspace / "test_report").read_text()
    assert "Refused by the gate: train.py" in report
    assert f"<p>{judgment.refusal}</p>" in report
    with pytest.raises(SystemExit):
        promote(workspace, judgment)
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == ["gate: test loss 0.2000 is below 0.3000", f"error: {judgment.refusal}"]
    assert "test accuracy 0.9300 is below 0.9500" in judgment.refusal
    assert not (workspace / "models").exists()


def test_a_model_that_passes_is_published_with_a_page(workspace: Path) -> None:
    judgment = judge(workspace, "accuracy>=0.9")
    assert "Evaluated: train.py" in (workspace / "test_report").read_text()
    uri, page = promote(workspace, judgment)
    assert page.startswith("# Published, now the latest\n")
    assert "- test accuracy 0.9300 is at least 0.9000\n" in page
    assert f"| model | `{uri}` |" in page
    assert f"| dataset version | `{DIGEST}` |" in page
    assert "load_model" not in page, "only the script knows its format"


def test_a_model_that_is_reused_is_not_worse_than_itself_and_its_page_says_that_nothing_was_trained(
    workspace: Path,
) -> None:
    judgment = judge(workspace, "not worse than latest, accuracy>=0.9", REUSED)
    uri, page = promote(workspace, judgment, REUSED)
    assert uri == REUSED["uri"]
    assert page.startswith("# Published, unchanged since run r7, so nothing was trained\n")
    assert "| test accuracy | 0.9000 |" in page
    assert 'kubetrain.load_model("s3://b/m/v7/")' in page
    refused = judge(workspace, "accuracy>=0.95", REUSED)
    assert "test accuracy 0.9000 is below 0.9500" in refused.refusal
    with pytest.raises(SystemExit):
        promote(workspace, refused, REUSED)


def test_the_page_has_metrics_with_intervals_and_how_to_use_the_model() -> None:
    page = page_of()
    assert "| test accuracy | 0.9300 (95%: 0.9100 to 0.9500) |\n" in page
    assert "| test loss | 0.2000 |\n" in page
    assert "| test a&#124;&lt;b&gt; | not a number |\n" in page
    assert 'kubetrain.load_model("s3://b/m/v8/", s3_endpoint="http://s3:9000")' in page
    assert "Replace `s3://b/m/latest.json` by a copy of `s3://b/m/v7/model.json`" in page
    assert 'load_model("file:///m/v8")' in how_to_load("file:///m/v8", "http://s3:9000")


def test_there_is_nothing_to_go_back_to_unless_a_version_was_replaced() -> None:
    assert "Go back" not in page_of(replace(PROMOTION, before=""))
    late = page_of(Promotion(version="v8", uri="s3://b/m/v8/", is_latest=False, note="v9 stays the latest"))
    assert late.startswith("# Published, v9 stays the latest\n")
    assert "Go back" not in late


def test_after_the_run_the_embedded_server_is_a_folder() -> None:
    assert lasting_uri("s3://models/p/v8/", {MIRROR_VARIABLE: "/work/s3"}) == "file:///work/s3/models/p/v8"
    assert lasting_uri("s3://models/p/v8/", {}) == "s3://models/p/v8/"
