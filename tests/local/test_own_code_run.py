"""`--code DIR` with a script of your own: a whole run on this machine, and wrong uses."""

from pathlib import Path

import pytest
import yaml

from support.cli import kubetrain, read_until, run_json, start

SCRIPT = """
import json, os
from pathlib import Path
from team.weights import WEIGHTS

output = Path(os.environ["KUBETRAIN_OUTPUT"])
if os.environ["RANK"] == "0":
    (output / "export" / "weights").write_text(WEIGHTS)
    (output / "metrics.json").write_text(json.dumps({"accuracy": 0.75}))
"""
ENTRY = ("--set", "train.entry=train.py")
RENDER = ("render", "--set", "data.uri=s3://b/data", "--set", "model.uri=s3://b/models")
ON_CLUSTER = ("train", "--cluster", "--output", "out", "--data", "in", "--dry-run")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "team").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "team" / "weights.py").write_text("WEIGHTS = 'of the archive'")
    return folder


@pytest.mark.slow
def test_a_run_publishes_what_the_script_of_the_archive_wrote(code: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers.txt").write_text("1 2 3")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "weights.py").write_text("WEIGHTS = 'of the working directory'")
    arguments = ("run", "--workspace", "workspace", "--code", code, "--set", "data.uri=data", *ENTRY)
    finished = kubetrain(*arguments, "--set", "model.gate=accuracy>=0.7", cwd=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert "2 files of " in finished.output
    record = run_json(tmp_path / "workspace")
    assert record["evaluation"]["metrics"] == {"accuracy": 0.75}
    assert (Path(record["model"]["path"]) / "weights").read_text() == "of the archive"
    refused = kubetrain(*arguments, "--set", "model.gate=accuracy>=0.8", cwd=tmp_path)
    assert refused.exit_code == 1
    assert "test accuracy 0.7500 is below 0.8000" in refused.output


@pytest.mark.slow
def test_a_second_training_with_the_same_code_leaves_the_first_its_own(code: Path, tmp_path: Path) -> None:
    waits = f"import time\nwhile os.environ['KUBETRAIN_RUN_ID'] == 'first' and not os.path.exists('{tmp_path}/end'):\n"
    (code / "train.py").write_text(
        SCRIPT.replace("from team", f"print('begun', flush=True)\n{waits}    time.sleep(0.1)\nfrom team")
    )
    settings = ("--set", "pods.workers=1", "--set", "data.format=synthetic", *ENTRY)
    arguments = ("train", "--code", code, "--output", "out", *settings)
    first = start(*arguments, "--run-id", "first", cwd=tmp_path)
    read_until(first, "begun")
    second = kubetrain(*arguments, "--run-id", "second", cwd=tmp_path)
    assert second.exit_code == 0, second.output
    (tmp_path / "end").touch()
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 0, output
    assert list((tmp_path / "out" / ".code").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--set", f"train.code={'0' * 32}"), "train.code is set, which this machine does not fetch"),
        (("run", "--code", ".", "--workspace", "."), "the folder of the run's own files: choose another for them"),
        (("train", "--code", ".", "--output", "."), "the folder of the run's own files: choose another for them"),
        (("train", "--code", "."), "--output is missing: pass a folder"),
        (("run", "--code", "absent"), "--code absent is not a folder"),
        (
            ("run", "--code", ".", "--set", "train.entry=tarin.py"),
            "no script 'tarin.py': did you mean 'train.py'",
        ),
        ((*ON_CLUSTER, "--code", "."), "--code needs a model.uri in S3, from which pods can fetch the code, not ''"),
        (
            (*RENDER, "--code", ".", "--set", "train.entry=python x.py"),
            "--code brings no script 'x.py'",
        ),
        (("doctor", "--code", ".", "--set", "model.name=train:build"), "--code needs a model.uri in S3"),
        (("train", "jax", "--cluster", "--code", ".", "--", "python"), "--code applies only to train-pytorch"),
    ],
)
def test_a_wrong_use_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "train.py").touch()
    finished = kubetrain(*arguments, cwd=tmp_path)
    assert finished.exit_code == 2, finished.output
    assert message in finished.output


@pytest.mark.parametrize("command", [RENDER, ON_CLUSTER])
def test_what_may_be_a_secret_is_named_before_the_manifests(command: tuple[str, ...], tmp_path: Path) -> None:
    finished = kubetrain(*command, "--set", "pods.env.HF_TOKEN=hf_abcdefghijklmnop1234", cwd=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert "# warning: pods.env.HF_TOKEN looks like a secret" in finished.output
    assert list(yaml.safe_load_all(finished.output)), "what kubectl reads"


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (ENTRY, "must have your 'train.py', which only a cluster can tell: `kubetrain doctor` tries it"),
        ((*ENTRY, "--code", "."), ""),
        (("--set", "model.name=team.tasks:build"), "must have your 'team'"),
        (("--set", "model.name=team.tasks:build", "--code", "."), ""),
        (("--set", "model.name=elsewhere:build", "--code", "."), "must have your 'elsewhere'"),
    ],
)
def test_render_warns_of_code_that_the_image_must_have(code: Path, arguments: tuple[str, ...], warning: str) -> None:
    shown = kubetrain(*RENDER, *arguments, cwd=code).output
    assert warning in shown
    assert ("must have your" in shown) == bool(warning)
    assert list(yaml.safe_load_all(shown)), "what kubectl reads"


def test_the_pods_of_one_job_fetch_your_code_too(code: Path) -> None:
    store = ("--set", "model.uri=s3://b/models", "--set", "data.endpoint=http://s3")
    (code / "out").mkdir()
    (code / "out" / "layers.py").write_text("in a folder with the name of the output PVC")
    shown = kubetrain(*ON_CLUSTER, "--set", "pods.launcher=job", *store, *ENTRY, "--code", ".", cwd=code).output
    assert shown.startswith("# code "), "only comments beside what kubectl reads"
    assert ": 3 files of " in shown
    (job,) = (each for each in yaml.safe_load_all(shown) if each["kind"] == "Job")
    (fetcher,) = job["spec"]["template"]["spec"]["initContainers"]
    digest = shown.removeprefix("# code ").partition(":")[0]
    assert ["--uri", "s3://b/models", "--endpoint", "http://s3", "--digest", digest] == fetcher["command"][3:9]
