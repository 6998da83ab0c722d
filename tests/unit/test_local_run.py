"""The record of a local run that is killed or cannot write, and its S3 server, without the user's AWS settings."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from kubetrain_components.jobs.local.loopback import LOOPBACK
from kubetrain_components.jobs.local.pod import inherited_environment
from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.local_run.embedded_s3 import (
    CREDENTIALS,
    EmbeddedS3,
    embedded_s3,
    replaced_environment,
    without_user_settings,
)
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.local_run.run import run_local
from kubetrain_pipelines.local_run.storage import DATASETS, DIGITS, MODELS, write_digits_once
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_trainer.errors import KubetrainError
from support.cli import kubetrain

PACKAGES = [str(Path(__file__).parents[2] / name) for name in ("pipelines", "components", "trainer")]


class View:
    """Calls a function at the first event."""

    def __init__(self, at_start: Callable[[], None] = lambda: None) -> None:
        self._at_start = at_start
        self._has_started = False
        self.said: list[str] = []

    def show(self, event: dict[str, Any]) -> None:
        if not self._has_started:
            self._has_started = True
            self._at_start()

    def say(self, line: str) -> None:
        self.said.append(line)

    def close(self) -> None: ...


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with a successful run, in which the next one fails at once because its S3 server cannot log."""
    (tmp_path / "s3" / DATASETS / DIGITS).mkdir(parents=True)
    (tmp_path / "logs" / "s3.log").mkdir(parents=True)
    (tmp_path / "run.json").write_text('{"status": "succeeded"}')
    (tmp_path / "report.html").write_text("succeeded")
    return tmp_path


TOKEN = "sk-abcdefghijklmnop1234"


def recorded(workspace: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((workspace / "run.json").read_text())
    return content


def run(workspace: Path, view: View, **groups: dict[str, Any]) -> RunRecord:
    return run_local(RequestFile(request=groups), workspace, view)


def test_a_run_is_recorded_as_running_before_it_does_anything(workspace: Path) -> None:
    seen, report = [], workspace / "report.html"
    with pytest.raises(IsADirectoryError):
        run(workspace, View(lambda: seen.append((recorded(workspace)["status"], report.exists()))))
    assert seen == [("running", False)]
    assert recorded(workspace)["status"] == "failed"
    assert "unexpected IsADirectoryError" in recorded(workspace)["error"]


def own_script(folder: Path) -> str:
    (script := folder / "train.py").write_text("import os\nos.environ['KUBETRAIN_OUTPUT']")
    return str(script)


def test_no_secret_in_a_setting_is_recorded(workspace: Path) -> None:
    entry = {"script": own_script(workspace), "args": ["--api-key", TOKEN, "--user", "me"]}
    with pytest.raises(IsADirectoryError):
        given = {"model": {"args": {"password": "x", "width": 2}}, "pods": {"env": {"HF_TOKEN": TOKEN, "A": "b"}}}
        run(workspace, View(), train={"entry": entry}, **given)
    content = recorded(workspace)
    assert content["request"]["pods"]["env"] == {"HF_TOKEN": "…", "A": "b"}
    for shown in (content["request"]["train"]["entry"], content["settings"]["train.entry"]):
        assert shown["args"] == ["--api-key", "…", "--user", "me"]
    assert content["request"]["model"]["args"] == content["settings"]["model.args"] == {"password": "…", "width": 2}
    assert TOKEN not in (workspace / "report.html").read_text()


def test_an_error_is_not_hidden_by_a_record_that_cannot_be_written(workspace: Path) -> None:
    def break_record() -> None:
        (workspace / "run.json").unlink()
        (workspace / "run.json").mkdir()

    with pytest.raises(IsADirectoryError, match=r"s3\.log"):
        run(workspace, View(break_record))


def test_settings_that_an_own_script_does_not_see_are_named_at_the_start(workspace: Path) -> None:
    view, model = View(), {"name": "torchvision:resnet18"}
    entry = {"script": own_script(workspace)}
    for train in ({"entry": entry, "epochs": 3, "metric": "f1"}, {"epochs": 3}):
        with pytest.raises(IsADirectoryError):
            run(workspace, view, train=train, model=model)
    (said,) = [line for line in view.said if line.startswith("warning: ")]
    assert "train.epochs=3" in said
    assert "model.name=torchvision:resnet18" in said
    assert "train.metric=" not in said
    assert said.endswith(": without effect, unless the entry reads KUBETRAIN_CONFIG")


def test_a_run_that_cannot_be_recorded_does_not_start(workspace: Path) -> None:
    (workspace / "run.json").unlink()
    (workspace / "run.json").mkdir()
    with pytest.raises(KubetrainError, match=r"cannot write .*run\.json.*--workspace"):
        run(workspace, View(lambda: pytest.fail("it started")))


def test_a_workspace_in_use_is_refused_and_left_alone(workspace: Path) -> None:
    with (workspace / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(KubetrainError, match="another run is using the workspace"):
            run(workspace, View(lambda: pytest.fail("it started")))
    assert recorded(workspace)["status"] == "succeeded"


def test_a_pipeline_that_ends_before_its_last_stage_has_not_succeeded(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the pipeline is one that does nothing and exits with 0."""
    empty = workspace / "empty" / "kubetrain_pipelines" / "local_run"
    empty.mkdir(parents=True)
    for file in ("__init__.py", "pipeline.py", "../__init__.py"):
        (empty / file).write_text("")
    monkeypatch.setenv("PYTHONPATH", str(workspace / "empty"))
    more_than_a_pipe_holds = {"uri": "file:///nowhere", "args": {"text": "x" * 2**20}}
    record = run(workspace, View(), data={"uri": str(workspace)}, model=more_than_a_pipe_holds)
    assert (record.status, recorded(workspace)["status"]) == ("failed", "failed")
    assert "exited with code 0, but no stage reported a cause" in record.error


@pytest.mark.parametrize("package", ["sklearn", "moto"])
def test_a_missing_extra_is_named(package: str, tmp_path: Path) -> None:
    if package == "moto":
        (tmp_path / "work" / "s3" / DATASETS / DIGITS).mkdir(parents=True)
    broken = tmp_path / "broken" / package
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\")")
    path = os.pathsep.join([str(broken.parent), *PACKAGES])
    finished = kubetrain("run", "--workspace", tmp_path / "work", PYTHONPATH=path)
    assert finished.exit_code == 1
    assert f"No module named '{package}'): run `pip install -e '.[demo]'` in kubetrain's clone" in finished.output
    assert not (tmp_path / "work" / "s3" / DATASETS / DIGITS).is_dir() or package == "moto"


def test_without_the_extra_of_the_commands_the_command_names_it() -> None:
    program = f"import sys; sys.path[:0] = {PACKAGES}; from kubetrain_pipelines.cli.entry_point import main; main()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: the package 'click' is not installed: run `pip install -e '.[pipelines]'` in kubetrain's clone\n"
    )


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("[project\n", 0, "kind: PyTorchJob"),
        ("[tool.kubetrain.images]\ncomponents = 5\n", 2, "components must be a string, not 5"),
        ("[tool.kubetrain]\npipelines = [\n", 2, "is not valid TOML"),
        ("[tool]\nkubetrain = 5\n", 2, "[tool.kubetrain] must be a table, not 5"),
    ],
)
def test_only_an_error_in_our_own_table_stops_a_command(tmp_path: Path, content: str, code: int, says: str) -> None:
    (tmp_path / "pyproject.toml").write_text(content)
    uris = ("--set", "data.uri=s3://b/d", "--set", "model.uri=s3://b/m")
    command = ("run", "--workspace", tmp_path / "work") if code else ("render", *uris)
    finished = kubetrain(*command, cwd=tmp_path)
    assert (finished.exit_code, says in finished.output) == (code, True), finished.output


def test_the_pods_of_a_local_job_reach_one_another_without_the_users_proxy() -> None:
    found = inherited_environment({"http_proxy": "http://proxy:3128", "no_proxy": ".corp"})
    assert (
        found.items()
        >= {
            "http_proxy": "http://proxy:3128",
            "no_proxy": f".corp,{LOOPBACK}",
            "NO_PROXY": LOOPBACK,
        }.items()
    )


def test_the_pods_of_a_local_job_inherit_nothing_that_a_job_sets() -> None:
    outer = {"RANK": "3", "PET_NNODES": "4", "TF_CONFIG": "{}", "KUBETRAIN_POD_ab": "worker-0", "RANKING": "best"}
    assert {*inherited_environment(outer)} & {*outer} == {"RANKING"}


class TestEmbeddedS3:
    def test_it_gets_nothing_of_the_users_aws(self) -> None:
        mine = {"AWS_DEFAULT_PROFILE": "team", "AWS_CONFIG_FILE": "/mine", "AWS_ENDPOINT_URL_STS": "https://sts"}
        found = without_user_settings({**mine, "PATH": "/bin", "NO_PROXY": "corp"})
        assert found == {
            **CREDENTIALS,
            "PATH": "/bin",
            "NO_PROXY": "corp,127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def test_only_new_objects_are_saved(self, tmp_path: Path) -> None:
        folder = tmp_path / MODELS
        for name in ("kept", "changed"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("old")
        before = (folder / "kept").stat()
        environment = without_user_settings({**os.environ, "AWS_DEFAULT_PROFILE": "team"})
        with (
            replaced_environment(environment),
            embedded_s3(environment, tmp_path / "log", {MODELS: folder}) as server,
        ):
            restored = server.etags(MODELS)
            store = open_store(f"s3://{MODELS}", server.url)
            store.write("changed", b"new")
            store.write("more/added", b"added")
            server.save_new_objects(MODELS, folder, restored)
        assert [(folder / name).read_text() for name in ("kept", "changed", "more/added")] == ["old", "new", "added"]
        assert (folder / "kept").stat().st_ino == before.st_ino

    @pytest.mark.parametrize("key", ["../outside", "/tmp/outside", "a/../../outside"])
    def test_a_key_that_leads_out_of_the_folder_is_refused_by_name(
        self, s3: EmbeddedS3, bucket: str, key: str, tmp_path: Path
    ) -> None:
        open_store(f"s3://{bucket}", s3.url).write(key, b"hostile")
        with pytest.raises(KubetrainError, match=f"cannot save s3://{bucket}/{key}"):
            s3.save_new_objects(bucket, tmp_path / "a" / "models", {})
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    @pytest.mark.parametrize("method", ["PUT", "GET", "OPTIONS"])
    @pytest.mark.parametrize("token", [{}, {"X-Amz-Security-Token": "guessed"}])
    def test_requests_of_others_are_refused(self, s3: EmbeddedS3, bucket: str, method: str, token: Any) -> None:
        """Neither the programs of other users nor web pages, which ask for the leave of OPTIONS, know the token."""
        origin = {"Origin": "http://page.example", "Access-Control-Request-Method": "PUT"}
        request = Request(
            f"{s3.url}/{bucket}/key", b"x" if method == "PUT" else None, {**origin, **token}, method=method
        )
        with pytest.raises(HTTPError, match="403") as refused:
            urlopen(request)
        assert not [name for name in refused.value.headers if name.lower().startswith("access-control")]
        assert list(open_store(f"s3://{bucket}", s3.url).list()) == []


def test_the_example_dataset_is_complete_or_missing(tmp_path: Path) -> None:
    """The process that writes it writes one file here, and then fails unless a file allows it to succeed."""
    package = tmp_path / "path" / "kubetrain_pipelines" / "local_run"
    package.mkdir(parents=True)
    for file in ("../__init__.py", "__init__.py"):
        (package / file).write_text("")
    (package / "digits.py").write_text(
        "import sys, pathlib\nfolder = pathlib.Path(sys.argv[1])\nfolder.mkdir(exist_ok=True)\n"
        "(folder / '1.png').touch()\nsys.exit('no space' if not folder.with_name('allowed').exists() else 0)"
    )
    environment = {"PYTHONPATH": str(tmp_path / "path")}
    with pytest.raises(KubetrainError, match=r"cannot write the example dataset \(no space\): free space"):
        write_digits_once(tmp_path / "digits", environment)
    assert not (tmp_path / "digits").exists()
    (tmp_path / "allowed").touch()
    write_digits_once(tmp_path / "digits", environment)
    assert (tmp_path / "digits" / "1.png").is_file()
