"""Scripts that know nothing of kubetrain keep their model: real processes, and a whole run."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.termination import LOG_VARIABLE
from support.cli import kubetrain, run_json
from support.process_groups import start_python

SAVES = """
import os, pathlib, shutil
pathlib.Path("checkpoint.pth.tar").write_text("2")
shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
pathlib.Path("outputs/tokens").mkdir(parents=True, exist_ok=True)
pathlib.Path("outputs/tokens/vocabulary.txt").write_text("a b")
os.utime("outputs/tokens/vocabulary.txt", (0, 0))
"""
IMAGENET_LIKE = """
import argparse, os, shutil

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description="Training on a folder of images")
parser.add_argument("data", metavar="DIR", nargs="?", default="imagenet")
parser.add_argument("-a", "--arch", default="resnet18")
parser.add_argument("--epochs", default=90, type=int)
parser.add_argument("-b", "--batch-size", default=4, type=int)
parser.add_argument("--resume", default="", help="path of the last checkpoint")
parser.add_argument("--dist-url", default="tcp://224.66.41.62:23456")
parser.add_argument("--dist-backend", default="nccl")
best_acc1 = 0.0


def main_worker(args):
    global best_acc1
    dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, len(os.listdir(os.path.join(args.data, "train")))))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if args.resume and os.path.isfile(args.resume):
        model.load_state_dict(torch.load(args.resume)["state_dict"])
    for epoch in range(args.epochs):
        loss = model(torch.ones(args.batch_size, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc1 = 100.0 - loss.item()
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        state = {"epoch": epoch + 1, "arch": args.arch, "state_dict": model.state_dict(), "best_acc1": best_acc1}
        save_checkpoint(state, is_best)


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


if __name__ == "__main__":
    main_worker(parser.parse_args())
"""
OUTPUTS = '["model_best.pth.tar", "outputs/"]'


def trained(folder: Path, text: str, *flags: str, cwd: str = "code", **environment: str) -> tuple[int, dict[str, Any]]:
    """Run a script in its folder, and return its exit code and termination message."""
    (folder / cwd).mkdir(exist_ok=True)
    (folder / cwd / "main.py").write_text(text)
    (folder / "message").write_text("")
    program = start_python(
        *("-m", "kubetrain_trainer.pytorch_ddp.own_code", "--data-dir", "/data", "--output-dir", folder / "run"),
        *("--metrics-port", "0", "--entry", '{"script": "main.py"}', *flags),
        cwd=folder / cwd,
        **{LOG_VARIABLE: str(folder / "message"), **environment},
    )
    output, _ = program.communicate(timeout=60)
    print(output)
    return program.returncode, json.loads((folder / "message").read_text() or "{}")


def exported(folder: Path) -> set[str]:
    return {file["name"] for file in TrainingOutput(folder / "run").read_export()["files"]}


@pytest.mark.parametrize("brings_code", [True, False])
def test_what_a_script_writes_into_its_working_directory_becomes_the_model(tmp_path: Path, brings_code: bool) -> None:
    code = tmp_path / "code"
    (code / "outputs").mkdir(parents=True)
    for name in ("outputs/of_the_code.pt", "settings.json"):
        (code / name).write_text("{}")
    text = f"print(open('settings.json').read())\n{SAVES}"
    found = {"KUBETRAIN_CODE": str(code)} if brings_code else {}
    assert trained(tmp_path, text, "--outputs", OUTPUTS, **found)[0] == 0
    assert exported(tmp_path) == {"model_best.pth.tar", "outputs/tokens/vocabulary.txt"}
    assert {path.name for path in code.rglob("*")} == {"main.py", "outputs", "of_the_code.pt", "settings.json"}


def test_a_link_does_not_publish_what_lies_elsewhere(tmp_path: Path) -> None:
    lines = (
        f"open('{tmp_path}/secret', 'w').write('of another')",
        f"os.symlink('{tmp_path}/secret', 'outputs/secret')",
        "os.symlink('..', 'outputs/above')",
    )
    text = "\n".join((SAVES, *lines))
    assert trained(tmp_path, text, "--outputs", OUTPUTS)[0] == 0
    assert exported(tmp_path) == {"model_best.pth.tar", "outputs/tokens/vocabulary.txt"}


def test_what_a_killed_attempt_wrote_is_not_the_model_but_can_be_resumed(tmp_path: Path) -> None:
    text = "import os\nif os.path.exists('checkpoint.pth.tar'): raise SystemExit\n" + SAVES + "os.kill(os.getpid(), 9)"
    assert trained(tmp_path, text, "--outputs", OUTPUTS)[0] == -signal.SIGKILL
    code, message = trained(tmp_path, text, "--outputs", OUTPUTS)
    assert code == 1
    assert "nothing new for train.outputs=" in message["error"]
    (tmp_path / "run" / "work" / "0" / "checkpoint.pth.tar").unlink()
    again = text.replace("os.kill(os.getpid(), 9)", "")
    assert trained(tmp_path, again, "--outputs", OUTPUTS)[0] == 0


def test_the_error_names_what_was_written_and_the_setting_that_publishes_it(tmp_path: Path) -> None:
    text = SAVES.replace("os.utime", "pathlib.Path(os.environ['KUBETRAIN_OUTPUT'], 'notes').write_text('1')  #")
    code, message = trained(tmp_path, text)
    assert code == 1
    error = message["error"]
    assert "the script wrote outputs/tokens/vocabulary.txt (0.0 MB), model_best.pth.tar (0.0 MB)" in error
    assert "$KUBETRAIN_OUTPUT/notes (0.0 MB)" in error
    assert 'train.outputs=["outputs/", "model_best.pth.tar", "checkpoint.pth.tar"]' in error
    kept = tmp_path / "run" / "left_behind"
    assert (kept / "model_best.pth.tar").read_text() == "2"
    assert str(kept) in error
    code, message = trained(tmp_path, text, "--outputs", '["best.pt"]')
    assert (code, 'train.outputs=["best.pt"]: the script wrote ' in message["error"]) == (1, True)


def test_a_training_that_publishes_nothing_needs_no_model(tmp_path: Path) -> None:
    text = "import os\nopen(os.environ['KUBETRAIN_OUTPUT'] + '/metrics.json', 'w').write('{\"accuracy\": 0.5}')"
    code, message = trained(tmp_path, text, "--publishes", "false")
    assert (code, message["status"]) == (0, "completed")
    assert TrainingOutput(tmp_path / "run").read_evaluation()["metrics"] == {"accuracy": 0.5}


def test_the_session_takes_metrics_of_a_model_that_the_script_writes_itself(tmp_path: Path) -> None:
    text = f"{SAVES}\nfrom kubetrain_trainer import session\nsession.finish(metrics={{'accuracy': 0.5, 'loss': 1e400}})"
    assert trained(tmp_path, text, "--outputs", OUTPUTS)[0] == 0
    assert exported(tmp_path) == {"model_best.pth.tar", "outputs/tokens/vocabulary.txt"}
    assert TrainingOutput(tmp_path / "run").read_evaluation()["metrics"] == {"accuracy": 0.5, "loss": None}


@pytest.fixture
def imagenet_like(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "data" / "train" / name).mkdir(parents=True)
        (tmp_path / "data" / "train" / name / "1.jpg").touch()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text(IMAGENET_LIKE)
    return tmp_path


RUN = ("run", "--set", "data.uri=data", "--set")
LINE = "train.entry=main.py -a resnet18 --epochs 2 --dist-url env:// --dist-backend gloo $KUBETRAIN_DATA"


@pytest.mark.slow
@pytest.mark.parametrize("pods", [(1, 2), (2, 1)])
def test_a_script_like_that_of_imagenet_is_published_as_it_is(imagenet_like: Path, pods: tuple[int, int]) -> None:
    workers, processes = pods
    finished = kubetrain(
        *(*RUN, LINE, "--code", "code", "--set", 'train.outputs=["model_best.pth.tar"]'),
        *("--set", f"pods.workers={workers}", "--set", f"pods.processes={processes}"),
        cwd=imagenet_like,
    )
    assert finished.exit_code == 0, finished.output
    assert "warning" not in finished.output
    model = Path(run_json(imagenet_like / "kubetrain-workspace")["model"]["path"])
    assert {path.name for path in model.iterdir()} == {"model.json", "model_best.pth.tar"}


@pytest.mark.slow
def test_a_run_that_publishes_nothing_succeeds_and_says_so(imagenet_like: Path) -> None:
    finished = kubetrain(*RUN, LINE, "--code", "code", "--set", "train.publishes=false", cwd=imagenet_like)
    assert finished.exit_code == 0, finished.output
    workspace = imagenet_like / "kubetrain-workspace"
    assert run_json(workspace)["model"] == {}
    assert "no model is published, because train.publishes is false" in (workspace / "logs/pipeline.log").read_text()
    assert not [*(workspace / "models").rglob("*.json")]


def test_a_script_that_saves_nothing_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import torch\ntorch.nn.Linear(1, 1)(torch.ones(1)).sum().backward()")
    for code in ((), ("--code", ".")):
        finished = kubetrain(*RUN, "train.entry=main.py", *code, cwd=tmp_path)
        assert (finished.exit_code, "'main.py' writes no model" in finished.output) == (2, True), finished.output
    assert [path.name for path in tmp_path.iterdir()] == ["main.py"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import not_there, torch\nopen('model.pt', 'w')", "not installed where it would run: not_there"),
        ("if", "not Python"),
    ],
)
def test_a_script_that_cannot_start_is_refused_before_anything_starts(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "main.py").write_text(text)
    finished = kubetrain(*RUN, "train.entry=main.py", cwd=tmp_path)
    assert (finished.exit_code, problem in finished.output) == (2, True), finished.output
    assert [path.name for path in tmp_path.iterdir()] == ["main.py"]


def test_a_script_that_saves_elsewhere_is_warned_of(imagenet_like: Path) -> None:
    render = ("render", "--set", "data.uri=s3://b/data", "--set", "model.uri=s3://b/models", "--set", LINE)
    warned = kubetrain(*render, "--code", "code", cwd=imagenet_like).output
    assert "# warning: neither the code nor the arguments of 'main.py' name $KUBETRAIN_OUTPUT" in warned
    assert "(by save_checkpoint in main.py)" in warned
    assert 'set train.outputs to the files, such as ["checkpoint.pth.tar", "model_best.pth.tar"]' in warned
    for setting in ('train.outputs=["*.tar"]', "train.publishes=false"):
        again = kubetrain(*render, "--code", "code", "--set", setting, cwd=imagenet_like)
        assert "warning: neither" not in again.output


def test_a_script_of_the_image_is_not_judged_by_the_code_that_is_brought(imagenet_like: Path) -> None:
    (imagenet_like / "code" / "main.py").write_text("import torch")
    render = ("render", "--set", "data.uri=s3://b/data", "--set", "model.uri=s3://b/models", "--code", "code")
    finished = kubetrain(*render, "--set", "train.entry=/opt/train.py", cwd=imagenet_like)
    assert (finished.exit_code, "KUBETRAIN_OUTPUT:" in finished.output) == (0, False), finished.output
