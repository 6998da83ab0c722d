"""Which Kubeflow Pipelines a command uses: by its options, the environment, the repository, a context or its pod."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_pipelines.definitions.project import project
from kubetrain_pipelines.kubeflow import own_cluster, token_command
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.kubeflow.contexts import Context, Contexts, write_contexts
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import Unauthorized
from kubetrain_trainer.errors import InvalidSetting
from support.cli import kubetrain
from support.kfp_server import KfpServer

MINE = Context(endpoint="http://mine", namespace="mine", token_command="echo my-token")
TEAM = Context(endpoint="http://team", namespace="team", token_command="echo team-token")
OTHER_OF_TEAM = Context(endpoint="http://team", namespace="other")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's contexts, and a folder below a repository without a table."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_contexts(Contexts(current="mine", by_name={"mine": MINE, "team": TEAM, "other": OTHER_OF_TEAM}))
    (tmp_path / "repository" / "src").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository" / "src")
    return tmp_path


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer() as server:
        yield server


def chosen(**options: str) -> tuple[str, str, dict[str, str]]:
    connection = ConnectionOptions(**options).required_connection()
    return connection.endpoint, connection.namespace, connection.headers()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def write_table(home: Path, **values: str) -> Path:
    file = home / "repository" / "pyproject.toml"
    file.write_text("[tool.kubetrain]\n" + "".join(f"{key} = '{value}'\n" for key, value in values.items()))
    return file


def test_options_precede_the_environment_the_repository_and_the_current_context(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen() == ("http://mine", "mine", bearer("my-token"))
    write_table(home, endpoint="http://team/", namespace="of-repository")
    assert chosen() == ("http://team", "of-repository", bearer("team-token"))
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", "http://kfps/")
    assert chosen() == ("http://kfps", "of-repository", {})
    monkeypatch.setenv("KUBETRAIN_KFP_ENDPOINT", "http://ours")
    assert chosen() == ("http://ours", "of-repository", {})
    assert chosen(endpoint="http://given", namespace="given") == ("http://given", "given", {})


def test_a_context_counts_for_its_endpoint_and_no_other_gets_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(endpoint="http://mine/") == ("http://mine", "mine", bearer("my-token"))
    assert chosen(endpoint="http://team") == ("http://team", "team", bearer("team-token"))
    assert chosen(endpoint="http://elsewhere") == ("http://elsewhere", "", {})
    monkeypatch.setenv("KF_PIPELINES_TOKEN", "of-environment")
    assert chosen() == ("http://mine", "mine", bearer("of-environment"))


def test_of_two_contexts_with_an_endpoint_the_current_one_counts() -> None:
    write_contexts(Contexts(current="other", by_name={"team": TEAM, "other": OTHER_OF_TEAM}))
    assert chosen(endpoint="http://team") == ("http://team", "other", {})


def test_an_endpoint_that_only_the_repository_names_is_not_trusted(home: Path) -> None:
    table = write_table(home, endpoint="http://evil")
    advice = "if you trust it, run `kubetrain config set NAME --endpoint http://evil`"
    with pytest.raises(InvalidSetting, match=f"{table} names the endpoint http://evil, .*: {advice}"):
        chosen()
    assert kubetrain("status", home).output.startswith(f"error: {home} "), "a folder needs no endpoint"


def test_a_table_above_the_folder_is_not_read_if_someone_else_left_it_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_table(home, namespace="of-repository")
    assert project().namespace == "of-repository"
    if os.getuid() == 0:
        os.chown(file, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert project().namespace == ""
    monkeypatch.chdir(file.parent)
    assert project().namespace == "of-repository"


@pytest.mark.parametrize("namespace", ["", "profile"])
def test_a_pod_uses_the_pipelines_of_its_cluster_with_its_namespace_if_multi_user(
    server: KfpServer, home: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    write_contexts(Contexts())
    monkeypatch.setattr(own_cluster, "ENDPOINT", server.endpoint)
    assert ConnectionOptions().connection() is None, "not in a pod"
    monkeypatch.setattr(own_cluster, "NAMESPACE_FILE", home / "namespace")
    (home / "namespace").write_text("profile")
    server.namespace = namespace
    assert chosen() == (server.endpoint, namespace, {})
    write_contexts(Contexts(current="mine", by_name={"mine": MINE}))
    assert chosen()[0] == "http://mine"


def test_a_pod_of_a_cluster_without_pipelines_has_no_endpoint(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_contexts(Contexts())
    monkeypatch.setattr(own_cluster, "ENDPOINT", "http://nosuch.invalid:8888")
    monkeypatch.setattr(own_cluster, "NAMESPACE_FILE", home / "namespace")
    (home / "namespace").touch()
    assert ConnectionOptions().connection() is None
    with pytest.raises(InvalidSetting, match="no Kubeflow Pipelines endpoint"):
        ConnectionOptions().required_connection()


def test_the_token_command_runs_again_for_a_new_token(
    server: KfpServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent() -> str:
        api.get("/runs")
        return str(server.headers[-1]["authorization"])

    command = f"""sh -c 'echo run >> {home}/runs; echo "token-$(wc -l < {home}/runs)"'"""
    api = KfpApi(ConnectionOptions().connection_to(Context(endpoint=server.endpoint, token_command=command)))
    assert [sent(), sent()] == ["Bearer token-1"] * 2
    with monkeypatch.context() as patch:
        patch.setattr(token_command, "MAX_AGE_SECONDS", 0)
        assert sent() == "Bearer token-2"
    assert api.connection.without_secrets("what is token-2?") == "what is ***?", "even if a newer one has been printed"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("sh -c 'echo log in >&2; exit 1'", r"exit 1'` failed \(log in\)"),
        ("nosuch", "No such file"),
        ("sleep 9", "timed out"),
    ],
)
def test_a_token_command_that_fails_says_why(command: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_command, "TIMEOUT_SECONDS", 0.2)
    connection = ConnectionOptions().connection_to(Context(endpoint="http://kfp", token_command=command))
    with pytest.raises(Unauthorized, match=says):
        connection.headers()
