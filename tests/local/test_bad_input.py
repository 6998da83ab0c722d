"""Invalid input gives one sentence with the value and the fix, an exit code, no partial output and no traceback."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from kubetrain_pipelines.local_run.embedded_s3 import CREDENTIALS, EmbeddedS3
from support.cli import KUBETRAIN, Finished, kubetrain, run_json


def assert_one_sentence(finished: Finished, exit_code: int, *messages: str) -> None:
    assert finished.exit_code == exit_code, finished.output
    assert "Traceback" not in finished.output
    for each in messages:
        assert each in finished.output
    assert len([line for line in finished.output.splitlines() if "error" in line.lower() or "failed:" in line]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train-pytroch"], "unknown pipeline 'train-pytroch': did you mean 'train-pytorch'?"),
        (["absent.yaml"], "absent.yaml cannot be read"),
        (["--set", "epochs=3"], "there is no setting 'epochs': did you mean 'train.epochs'?"),
        (["--set", "train.epoch=3"], "there is no setting 'train.epoch': did you mean 'train.epochs'?"),
        (["--set", "pods.worker=3"], "there is no setting 'pods.worker': did you mean 'pods.workers'?"),
        (["--set", "epochs"], "--set takes GROUP.NAME=VALUE, not 'epochs'"),
        (["--set", "train.epochs=ten"], "train.epochs must be a whole number, not 'ten'"),
        (["--set", "train.epochs=-1"], "train.epochs must be at least 1, not -1"),
        (["--set", "train.learning_rate=fast"], "train.learning_rate must be a number, not 'fast'"),
        (["--set", "pods.workers=0"], "pods.workers must be at least 1, not 0"),
        (["--set", "pods.workers=two"], "pods.workers must be a whole number, not 'two'"),
        (["--set", "model.gate=accuracy>=97"], "no accuracy is at least 97, because it is from 0 to 1"),
        (["--set", "model.name=torchvision:resnet51"], "did you mean 'torchvision:resnet5"),
        (["--set", "model.name=keras:resnet50"], "is for tensorflow, but this run trains with pytorch"),
        (
            ["--set", "data.uri=ftp://bucket/x"],
            "data.uri 'ftp://bucket/x' is neither s3://BUCKET/PREFIX, gs://BUCKET/PREFIX",
        ),
        (["--set", "data.uri="], "data.uri is empty"),
        (
            ["--set", "train.preflight=avoid"],
            "train.preflight=avoid is for a cluster, which has other nodes: leave it out",
        ),
        (["--set", "model.uri=s3://mine/models"], "model.uri is set without data.uri"),
        (
            ["train-tensorflow", "--set", "pods.processes=2"],
            "pods.processes is 2, but a TensorFlow process uses every GPU of its pod",
        ),
        (
            ["--set", "data.uri=s3://b/p", "--set", "data.access=public"],
            "data.access cannot be 'public'",
        ),
    ],
)
def test_an_invalid_run_starts_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    workspace = tmp_path / "workspace"
    assert_one_sentence(kubetrain("run", "--workspace", workspace, *arguments), 2, message)
    assert not workspace.exists()


@pytest.mark.parametrize("workspace", ["/proc/nowhere", "/dev/null/workspace"])
def test_a_workspace_that_cannot_be_written(workspace: str) -> None:
    assert_one_sentence(
        kubetrain("run", "--workspace", workspace), 1, f"cannot write to the workspace {workspace}", "--workspace"
    )


@pytest.mark.parametrize(
    ("dataset_uri", "endpoint", "message"),
    [
        ("s3://no-such-bucket/digits", "", "bucket 'no-such-bucket' does not exist"),
        ("s3://{bucket}/no/such/prefix", "", "no objects under s3://{bucket}/no/such/prefix"),
        ("s3://{bucket}/x", "http://127.0.0.1:9", "cannot reach S3 at http://127.0.0.1:9"),
        ("/no/such/folder", "", "/no/such/folder is not a directory"),
    ],
)
def test_a_missing_dataset(
    tmp_path: Path, s3: EmbeddedS3, bucket: str, dataset_uri: str, endpoint: str, message: str
) -> None:
    finished = kubetrain(
        *("run", "--workspace", tmp_path),
        *("--set", f"data.uri={dataset_uri.format(bucket=bucket)}"),
        *("--set", f"data.endpoint={endpoint or s3.url}"),
        **CREDENTIALS,
    )
    assert_one_sentence(finished, 1, message.format(bucket=bucket))
    record = run_json(tmp_path)
    assert (record["status"], record["stages"][-1]["name"]) == ("failed", "sync_dataset")
    assert (tmp_path / "report.html").is_file()
    assert list((tmp_path / "staging" / "versions").iterdir()) == []


class TestSync:
    def test_a_missing_source(self, tmp_path: Path) -> None:
        finished = kubetrain("sync", "/no/such/folder", tmp_path / "staging")
        assert_one_sentence(finished, 1, "/no/such/folder is not a directory")

    def test_no_source(self) -> None:
        finished = kubetrain("sync")
        assert finished.exit_code == 2
        assert "Missing argument 'SOURCE'" in finished.output

    def test_an_anonymous_requester_that_pays(self, tmp_path: Path) -> None:
        finished = kubetrain("sync", "s3://bucket", tmp_path, "--anonymous", "--requester-pays")
        assert_one_sentence(finished, 2, "--requester-pays needs credentials, but --anonymous sends none")

    def test_a_target_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        finished = kubetrain("sync", tmp_path, "/proc/nowhere")
        assert_one_sentence(finished, 1, "cannot use /proc/nowhere")


class TestVerify:
    def test_nothing_complete(self, tmp_path: Path) -> None:
        (tmp_path / "checkpoints" / ".step-00000001.partial").mkdir(parents=True)
        for folder in (tmp_path, tmp_path / "checkpoints"):
            assert_one_sentence_about_nothing(kubetrain("verify", folder))

    def test_no_folder(self) -> None:
        assert kubetrain("verify", "/no/such/folder").exit_code == 1


def assert_one_sentence_about_nothing(finished: Finished) -> None:
    assert finished.exit_code == 1
    assert "nothing complete in" in finished.output
    assert "Traceback" not in finished.output


class TestTrain:
    @pytest.mark.parametrize(
        ("arguments", "exit_code", "message"),
        [
            (["train-pytorhc"], 2, "unknown pipeline 'train-pytorhc': did you mean 'train-pytorch'?"),
            (["--set", "train.epochs=0"], 2, "train.epochs must be at least 1"),
            (["train-tensorflow", "--set", "pods.processes=2"], 2, "uses every GPU of its pod"),
            (["--run-id", "../../escape"], 2, "run ID '../../escape' cannot name a folder"),
            ([], 1, "/no/such/folder is not a directory"),
        ],
    )
    def test_wrong_settings(self, tmp_path: Path, arguments: list[str], exit_code: int, message: str) -> None:
        output = tmp_path / "output"
        finished = kubetrain("train", "--data", "/no/such/folder", "--output", output, *arguments)
        assert_one_sentence(finished, exit_code, message)
        assert not output.exists()

    def test_an_output_that_cannot_be_written(self, tmp_path: Path) -> None:
        finished = kubetrain("train", "--data", tmp_path, "--output", "/proc/nowhere")
        assert_one_sentence(finished, 1, "cannot write to /proc/nowhere")

    def test_no_data(self) -> None:
        finished = kubetrain("train", "--output", "out")
        assert finished.exit_code == 2
        assert "--data is missing" in finished.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "--data names no PVC: pass PVC or PVC:PATH"),
            (("--data", "digits", "--set", "pods.gpu=1"), "did you mean 'pods.gpus'?"),
            (("--data", "digits", "--set", "pods.memory=16GB"), "memory '16GB' is not a Kubernetes quantity"),
            (("--data", "digits", "--set", "pods.min_workers=3"), "pods.min_workers is 3, more than pods.workers, 2"),
        ],
    )
    def test_settings_that_no_cluster_accepts(self, arguments: tuple[str, ...], message: str) -> None:
        finished = kubetrain("train", "--cluster", "--output", "out", *arguments)
        assert (finished.exit_code, message in finished.output) == (2, True), finished.output

    def test_no_cluster(self, tmp_path: Path) -> None:
        arguments = ("train", "--cluster", "--data", "digits", "--output", "out")
        finished = kubetrain(*arguments, KUBECONFIG=str(tmp_path / "absent"))
        assert finished.exit_code == 1
        assert "no cluster is configured" in finished.output

    def test_a_dry_run_prints_a_manifest(self) -> None:
        data = ("--data", "digits:versions/0123456789abcdef/data")
        finished = kubetrain("train", "--cluster", "--dry-run", *data, "--output", "out", "--set", "pods.gpus=2")
        manifest = yaml.safe_load(finished.output)
        assert (finished.exit_code, manifest["kind"]) == (0, "PyTorchJob")
        assert finished.output.startswith("# launcher auto")
        assert manifest["metadata"]["labels"]["kubetrain/dataset"] == "0123456789abcdef"

    @pytest.mark.parametrize(
        ("data", "output", "message"),
        [
            ("P_x:y", "out", "--data 'P_x' is not a valid object name"),
            ("digits:/x", "out", "the path '/x'"),
            ("digits:a/../../x", "out", "the path 'a/../../x'"),
            ("digits", "My/Output", "--output 'My/Output' is not a valid object name"),
        ],
    )
    def test_a_dry_run_prints_nothing_that_kubernetes_would_refuse(self, data: str, output: str, message: str) -> None:
        finished = kubetrain("train", "--cluster", "--dry-run", "--data", data, "--output", output)
        assert (finished.exit_code, message in finished.output) == (2, True), finished.output
        assert "apiVersion" not in finished.output

    def test_a_list_of_something_else_than_kubernetes_objects(self) -> None:
        arguments = (
            "train",
            "--cluster",
            "--dry-run",
            "--data",
            "digits",
            "--output",
            "out",
            "--set",
            "pods.min_workers=2",
        )
        finished = kubetrain(*arguments, "--set", "pods.scale_metrics=[5]")
        assert_one_sentence(finished, 2, "scale_metrics[0] is not an object")

    def test_a_dry_run_prints_what_is_created_beside_the_job(self) -> None:
        arguments = ("train", "--cluster", "--dry-run", "--data", "digits", "--output", "out")
        finished = kubetrain(*arguments, "--set", "pods.launcher=job")
        service, job = yaml.safe_load_all(finished.output)
        assert (finished.exit_code, service["kind"], job["kind"]) == (0, "Service", "Job")
        assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
        assert "#" not in finished.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--set", "train.preflight=avoid"), "train.preflight=avoid is for a cluster, which has other nodes"),
            (("--set", "pods.launcher=operator"), "pods.launcher cannot be 'operator'"),
            (("--set", "pods.launcher=operator", "--cluster"), "pods.launcher cannot be 'operator'"),
        ],
    )
    def test_a_launcher_or_setting_that_cannot_be_used_here(self, arguments: tuple[str, ...], message: str) -> None:
        finished = kubetrain("train", "--output", "out", "--set", "data.format=synthetic", *arguments)
        assert (finished.exit_code, message in finished.output) == (2, True), finished.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("mpi", "--", "mpirun"), "mpi runs only on a cluster: add --cluster"),
            (("jax", "--cluster"), "jax runs your own program: add -- and its command"),
            (("jax", "--cluster", "--", "python", "a.py"), "the pods have no image: set pods.image"),
            (("jax", "--cluster", "--set", "pods.workers=0", "--", "x"), "pods.workers must be at least 1"),
            (("jax", "--cluster", "--set", "pods.min_workers=1", "--", "x"), "apply only to train-pytorch"),
            (("jax", "--cluster", "--set", "pods.processes=2", "--", "x"), "only to train-pytorch and mpi"),
            (("jax", "--cluster", "--set", "pods.launcher=x", "--", "x"), "pods.launcher cannot be 'x'"),
            (("jax", "--cluster", "--set", "train.epochs=3", "--", "x"), "settings of pods alone, but train is set"),
            (("jax", "--cluster", "--run-id", "../x", "--", "x"), "--run-id '../x'"),
            (("bogus", "--", "x"), "only mpi, xgboost, paddle, jax take a command"),
            (("--output", "out", "--", "python", "train.py"), "take a command after --: set train.entry"),
            (("--data", "digits"), "--output is missing"),
        ],
    )
    def test_a_command_that_cannot_run(self, arguments: tuple[str, ...], message: str) -> None:
        options = ("--dry-run",) if "--cluster" in arguments else ()
        finished = kubetrain("train", *options, *arguments)
        assert_one_sentence(finished, 2, message)

    def test_a_dry_run_needs_cluster(self) -> None:
        finished = kubetrain("train", "--dry-run", "--output", "out", "--set", "data.format=synthetic")
        assert (finished.exit_code, "add --cluster" in finished.output) == (2, True)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("translate - <&-", "no job to translate"),
        ("diagnose - <&-", "standard input: it is empty"),
        (
            "render --set data.uri=s3://b/data --set model.uri=s3://b/models >/dev/full",
            "No space",
        ),
        ("render --set $(printf %0100000d)=1", "there is no setting '000"),
    ],
)
def test_what_a_shell_closes_or_fills_ends_with_a_sentence(command: str, says: str) -> None:
    finished = subprocess.run(["sh", "-c", f"{KUBETRAIN} {command}"], capture_output=True, text=True, check=False)
    said = finished.stdout + finished.stderr
    assert finished.returncode != 0
    assert says in said and "unexpected" not in said
    assert len(said) < 5000


class TestRender:
    URIS = ("--set", "data.uri=s3://bucket/digits", "--set", "model.uri=s3://bucket/models")

    def test_everything_that_a_run_creates(self) -> None:
        pairs = ("pods.gpus=2", "storage.staging_size=2Ti", "data.secret=mine", "train.epochs=9")
        settings = [f"--set={pair}" for pair in pairs]
        finished = kubetrain("render", "train-tensorflow", "--run-id", "r1", *self.URIS, *settings)
        assert finished.exit_code == 0, finished.output
        staging, _, transfer, training, evaluation = yaml.safe_load_all(finished.output)
        assert staging["spec"]["resources"]["requests"]["storage"] == "2Ti"
        (container,) = transfer["spec"]["template"]["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "mine", "optional": True}}]
        (chief,) = training["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"]
        assert chief["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert chief["command"][-2:] == ["--epochs", "9"]
        assert evaluation["kind"] == "Job"
        assert "# launcher auto" in finished.output

    def test_a_launcher_that_is_set(self) -> None:
        finished = kubetrain("render", *self.URIS, "--set", "pods.launcher=trainer")
        kinds = [each["kind"] for each in yaml.safe_load_all(finished.output)]
        assert kinds[3:] == ["TrainingRuntime", "TrainJob", "Job"]
        assert "# launcher auto" not in finished.output

    def test_a_file_says_the_same_as_its_settings_by_name(self, tmp_path: Path) -> None:
        groups = {
            "data": {"uri": "s3://bucket/digits"},
            "model": {"uri": "s3://bucket/models"},
            "pods": {"gpus": 1, "env": {"A": "b"}, "workers": 3},
            "train": {"epochs": 9, "skip_unchanged": True},
        }
        for name in ("nightly.json", "nightly.yaml"):
            (tmp_path / name).write_text(json.dumps(groups) if name.endswith("json") else yaml.safe_dump(groups))
        pairs = ("pods.gpus=2", "pods.env.A=b", "train.epochs=9", "pods.workers=3", "train.skip_unchanged=true")
        by_name = kubetrain("render", *self.URIS, *(f"--set={pair}" for pair in pairs))
        assert by_name.exit_code == 0, by_name.output
        for file in tmp_path.iterdir():
            assert kubetrain("render", file, "--set", "pods.gpus=2").output == by_name.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "model.uri is missing"),
            (("--set", "model.uri=s3://b/models"), "data.uri is empty"),
            ((*URIS, "--set", "stagin_size=1Gi"), "did you mean 'storage.staging_size'?"),
            ((*URIS, "--set", "pods.restart_policy=Always"), "pods.restart_policy Always"),
            ((*URIS, "--set", "pods.nccl=[]"), "pods.nccl must be a JSON object, not []"),
            (("/nosuch.yaml",), "/nosuch.yaml cannot be read"),
            (("train-torch",), "unknown pipeline 'train-torch'"),
        ],
    )
    def test_parameters_that_no_run_accepts(self, arguments: tuple[str, ...], message: str) -> None:
        finished = kubetrain("render", *arguments)
        assert (finished.exit_code, message in finished.output) == (2, True), finished.output

    def test_a_parameter_adds_no_manifest(self) -> None:
        evil = "x\napiVersion: v1\nkind: Secret\nmetadata: {name: evil}\n---\n"
        entry = json.dumps({"script": f"{evil}.py"})
        shown = kubetrain("render", *self.URIS, "--set", f"train.entry={entry}")
        kinds = [each["kind"] for each in yaml.safe_load_all(shown.output)]
        assert (shown.exit_code, "Secret" in kinds) == (0, False), shown.output
        refused = kubetrain("render", *self.URIS, "--set", f"pods.image={evil}#")
        assert (refused.exit_code, "is not a valid name of an image" in refused.output) == (2, True)

    def test_an_error_leaves_no_output_for_kubectl(self) -> None:
        finished = kubetrain("render", *self.URIS, "--set", "storage.transfer.env=3")
        assert finished.exit_code == 2
        assert "#" not in finished.output


def test_an_unknown_command_or_option_suggests_the_nearest() -> None:
    assert "run" in kubetrain("rnu").output
    finished = kubetrain("run", "--workspac", "x")
    assert finished.exit_code == 2
    assert "--workspace" in finished.output


def test_debug_shows_the_traceback_at_any_position(tmp_path: Path) -> None:
    for arguments in (["--debug", "run", "--set", "x=1"], ["run", "--set", "x=1", "--debug"]):
        finished = kubetrain(*arguments, cwd=tmp_path)
        assert "Traceback" in finished.output
        assert "InvalidSetting: there is no setting 'x'" in finished.output
        assert finished.exit_code == 2, "the same as without"


def test_debug_after_two_dashes_belongs_to_the_users_program() -> None:
    job = ("jax", "--cluster", "--output", "out", "--set", "pods.image=i:1", "--dry-run")
    rendered = kubetrain("train", *job, "--", "python", "train.py", "--debug", "--verbose")
    assert rendered.exit_code == 0, rendered.output
    assert "- '--debug'\n" in rendered.output
