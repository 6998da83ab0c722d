"""The report in a real browser: no console error, every figure visible, on a laptop and a phone, light and dark."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.evaluate_model.report import run_report, training_report
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def trained(folder: Path, classes: int = 10) -> TrainingOutput:
    output = TrainingOutput(folder / "output" / "run-1")
    output.begin("pytorch", TrainConfig(epochs=3), "d" * 16)
    rows = [{"step": step, "epoch": 0, "loss": 2 / step} for step in range(1, 60)]
    rows += [
        {"step": step, "epoch": 0, "validation_loss": 3 / step, "validation_accuracy": 0.9} for step in (20, 40, 59)
    ]
    output.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [f"class <{number}>" for number in range(classes)]
    matrix = [
        [9 if row == column else ((row + column) % 7 == 0 and 1) or 0 for column in range(classes)]
        for row in range(classes)
    ]
    wrong = {"truth": names[1], "prediction": names[2], "confidence": 0.9, "picture": PICTURE}
    checkpoint = output.write_checkpoint(
        TrainingProgress(step=59), {"metrics": {}}, lambda path: (path / "s").write_bytes(b"")
    )
    output.write_evaluation(
        {
            "split": "test",
            "samples": 270,
            "metrics": {"accuracy": 0.9633, "loss": 0.1, "f1": 0.95, "ratio": None},
            "intervals": {"accuracy": (0.9338, 0.9799), "loss": (0.08, 0.12), "ratio": (None, None)},
            "classes": names,
            "confusion": matrix,
            "misclassified": [wrong] * 12,
            "manifest_sha256": checkpoint.manifest_sha256,
        }
    )
    return output


def record(folder: Path, status: str = "succeeded", stages: int = 5) -> RunRecord:
    run = RunRecord(
        pipeline="train-pytorch",
        workspace=folder,
        asked={"train": {"epochs": 3}},
        settings={"data": {"uri": "s3://datasets/digits"}, "model": {"uri": "s3://" + "a-long-name/" * 12}},
        config=TrainConfig(epochs=3),
        started=1000.0,
        status=status,
    )
    names = ["sync_dataset", "launch_training", "collect_checkpoint", "evaluate_model", "promote_model"][:stages]
    for number, name in enumerate(names):
        run.add({"time": 1000.0 + 10 * number, "stage": name, "event": "started", "run_id": "run-1"})
        failed = status == "failed" and number == stages - 1
        ending = {"event": "failed", "error": "<b>it</b> broke: mend it", "log_tail": ["one", "two " * 90]}
        run.add({"time": 1009.0 + 10 * number, "stage": name, **(ending if failed else {"event": "finished"})})
    run.finished = 1060.0
    return run


def report(run: RunRecord, output: TrainingOutput | None) -> str:
    return run_report(run.to_json(), run.config.to_dict(), output)


def page(folder: Path, content: str) -> str:
    path = folder / "report.html"
    path.write_text(content)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Reports by number of classes."""
    folders = {classes: tmp_path_factory.mktemp("report") for classes in (10, 80)}
    return {
        classes: page(folder, report(record(folder), trained(folder, classes))) for classes, folder in folders.items()
    }


SIZES = [(1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light"), (390, 844, "dark")]


def open_page(browser: object, uri: str, width: int, height: int, scheme: str) -> tuple[object, list[str]]:
    complaints: list[str] = []
    view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    view.on("console", lambda message: complaints.append(message.text))
    view.on("pageerror", lambda error: complaints.append(str(error)))
    view.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:")) else complaints.append(request.url),
    )
    view.goto(uri)
    return view, [each for each in complaints if not each.startswith(("file:", "data:"))]


@needs_browser
@pytest.mark.parametrize(("width", "height", "scheme"), SIZES)
@pytest.mark.parametrize("classes", [10, 80])
def test_every_figure_is_visible_without_a_complaint(
    browser: object, pages: dict[int, str], width: int, height: int, scheme: str, classes: int
) -> None:
    view, complaints = open_page(browser, pages[classes], width, height, scheme)
    assert complaints == []
    assert view.evaluate("document.documentElement.scrollWidth") <= width, "nothing runs out of the page"
    boxes = view.eval_on_selector_all(
        "svg, figure img, table.matrix, .timeline .bar, .verdict",
        "nodes => nodes.map(node => node.getBoundingClientRect()).map(box => [box.width, box.height])",
    )
    assert len(boxes) == 2 + 12 + 1 + 5 + 1
    assert [box for box in boxes if min(box) < 3] == []
    assert view.eval_on_selector_all("img", "nodes => nodes.every(node => node.naturalWidth > 0)")
    if classes == 10:
        curve = view.eval_on_selector("svg path[style*='--blue']", "node => getComputedStyle(node).stroke")
        assert curve == {"light": "rgb(36, 99, 201)", "dark": "rgb(110, 168, 255)"}[scheme], "curves follow the page"


@needs_browser
@pytest.mark.parametrize(("width", "height", "scheme"), SIZES)
def test_a_failed_runs_report_says_why(browser: object, tmp_path: Path, width: int, height: int, scheme: str) -> None:
    uri = page(tmp_path, report(record(tmp_path, "failed", stages=2), None))
    view, complaints = open_page(browser, uri, width, height, scheme)
    assert complaints == []
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert view.inner_text(".verdict strong") == "Failed in launch_training: digits_cnn"
    assert "<b>it</b> broke: mend it" in view.inner_text(".verdict")


def test_the_outcome_is_at_the_top_and_the_most_frequent_confusions_are_named(tmp_path: Path) -> None:
    html = report(record(tmp_path), trained(tmp_path))
    assert html.index("Succeeded") < html.index("<svg") < html.index("Confusion matrix") < html.index("Timeline")
    assert "<b><bdi>class &lt;0&gt;</bdi></b> predicted as <b><bdi>class &lt;7&gt;</bdi></b> (once)" in html
    assert "0.9633" in html
    assert re.findall("95%: ([^<]*)<", html) == ["0.9338 to 0.9799", "0.0800 to 0.1200"]


def test_an_evaluation_of_your_own_has_metrics_alone(tmp_path: Path) -> None:
    output = trained(tmp_path)
    output.write_evaluation({"split": "test", "samples": 0, "metrics": {"bleu": 31.5}, "manifest_sha256": "a"})
    html = training_report(output)
    assert "31.5000" in html
    assert "95%:" not in html


def test_the_page_needs_no_network_and_carries_no_script(tmp_path: Path) -> None:
    html = report(record(tmp_path), trained(tmp_path))
    assert "<script" not in html
    links = [part for part in html.split('"') if part.startswith(("http:", "https:", "//"))]
    assert set(links) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}, "names, not addresses"


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    html = report(record(tmp_path, "failed"), trained(tmp_path))
    assert "class <1>" not in html
    assert "<b>it</b>" not in html


def test_the_steps_own_report_has_the_evaluation_without_the_run(tmp_path: Path) -> None:
    html = training_report(trained(tmp_path))
    assert "Confusion matrix" in html
    assert "Timeline" not in html
    assert "dddddddddddddddd" in html


def test_a_run_that_ended_before_its_first_stage_has_a_report_too(tmp_path: Path) -> None:
    html = report(record(tmp_path, "stopped", stages=0), None)
    assert "Stopped" in html


CONTRASTS = """nodes => nodes.map(node => {
  const light = color => {
    const [r, g, b] = color.match(/[\\d.]+/g).map(each => color.startsWith("rgb") ? each / 255 : +each)
    const linear = each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
  }
  const {color, backgroundColor} = getComputedStyle(node)
  const [dark, bright] = [light(color), light(backgroundColor)].sort((one, other) => one - other)
  return (bright + 0.05) / (dark + 0.05)
})"""


@needs_browser
@pytest.mark.parametrize(("width", "height", "scheme"), SIZES)
def test_names_of_any_length_and_direction_and_counts_of_any_share_are_readable(
    browser: object, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    output = trained(tmp_path)
    evaluation = output.read_evaluation()
    names = ["long" * 30, "\u202esemit", *evaluation["classes"][2:]]
    matrix = [[column == (row + 1) % 10 if row % 2 else column == row for column in range(10)] for row in range(10)]
    matrix[2] = [*range(10)]
    metrics = {"metric" * 20: 0.5}
    output.write_evaluation({**evaluation, "classes": names, "confusion": matrix, "metrics": metrics})
    view, _ = open_page(browser, page(tmp_path, report(record(tmp_path), output)), width, height, scheme)
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert min(view.eval_on_selector_all("table.matrix td:not(.zero)", CONTRASTS)) >= 4.5
    right_to_left = "nodes => nodes.every(node => !node.textContent.includes('semit') || node.closest('bdi'))"
    assert view.eval_on_selector_all("main b, th span > *", right_to_left)
    assert view.is_visible("text=epochs")
    assert not view.is_visible("text=nccl_timeout_seconds")
