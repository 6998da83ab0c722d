"""`kubetrain config`: contexts in a file, which hand-written mistakes do not pass."""

import json
import stat
from pathlib import Path

import pytest

from kubetrain_pipelines.kubeflow.contexts import Context, Contexts, read_contexts, write_contexts
from kubetrain_trainer.errors import InvalidSetting
from support.cli import kubetrain

URL = "http://localhost:8888"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "kubetrain" / "config.toml"


def config(*arguments: str) -> str:
    done = kubetrain("config", *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_contexts_are_created_changed_chosen_and_deleted(file: Path, tmp_path: Path) -> None:
    assert config() == "no contexts: create one with `kubetrain config set NAME --endpoint URL`\n"
    (tmp_path / "ca.pem").touch()
    secured = ("--ca-file", f"{tmp_path}/ca.pem", "--token-command", "cat 'my token'")
    config("set", "team-a", "--endpoint", f"{URL}/", *secured)
    config("set", "team-b", "--endpoint", "https://b.example/pipeline")
    assert config().startswith("* team-a\n"), "the first is current"
    config("set", "team-a", "--namespace", "a", "--ca-file", "")
    team_a = {"endpoint": URL, "namespace": "a", "token_command": "cat 'my token'", "ca_file": ""}
    listed = json.loads(config("list", "--json"))
    assert listed["current"] == "team-a"
    assert [*listed["contexts"]] == ["team-a", "team-b"]
    assert listed["contexts"]["team-a"] == team_a
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    config("use", "team-b")
    config("delete", "team-a")
    assert config() == "* team-b\n    endpoint       https://b.example/pipeline\n"
    config("delete", "team-b")
    assert json.loads(config("list", "--json")) == {"current": "", "contexts": {}}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("set", "team-b"), "error: no Kubeflow Pipelines endpoint"),
        (("set", "team-b", "--endpoint", "localhost:8888"), "error: endpoint 'localhost:8888' is not valid"),
        (("set", "team-a", "--ca-file", "nosuch"), "/nosuch is not a file"),
        (("set", "team-a", "--token-command", "echo 'x"), "error: the token command `echo 'x` is invalid"),
        (("set", "team-a", "--namespace", "a\nb"), r"error: 'a\nb' has a character that is not printable"),
        (("set", "", "--endpoint", URL), "Error: NAME is empty"),
        (("use", "team-c"), "error: no context is named 'team-c': did you mean 'team-a'?"),
        (("delete", "team-c"), "error: no context is named 'team-c': did you mean 'team-a'?"),
    ],
)
def test_an_invalid_change_is_refused_and_nothing_is_written(file: Path, arguments: tuple[str, ...], says: str) -> None:
    write_contexts(Contexts(current="team-a", by_name={"team-a": Context(endpoint=URL)}))
    before = file.read_bytes()
    done = kubetrain("config", *arguments)
    assert (done.exit_code, says in done.output) == (2, True), done.output
    assert file.read_bytes() == before


@pytest.mark.parametrize("text", ["plain", "two words", 'a "quoted" \\ one', "ümläut 🚀", "a.b", "current = 1 # x"])
def test_any_text_is_read_as_it_was_written(file: Path, text: str) -> None:
    contexts = Contexts(current=text, by_name={text: Context(endpoint=URL, token_command=text)})
    write_contexts(contexts)
    assert read_contexts() == contexts


def test_a_link_to_the_file_stays_a_link(file: Path, tmp_path: Path) -> None:
    file.parent.mkdir(parents=True)
    file.symlink_to(tmp_path / "dotfiles.toml")
    write_contexts(Contexts())
    assert file.is_symlink()
    assert (tmp_path / "dotfiles.toml").read_text() == 'current = ""\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("curent = 'a'", ", line 1: unknown name 'curent': did you mean 'current'?"),
        ("contexts = 5", ", line 1: contexts must be a table, not 5"),
        ("[contexts]\n\na = 'x'", ", line 3: a must be a table, not 'x'"),
        ("current = 5", ", line 1: current must be a string, not 5"),
        (
            "current = 'a'\n[contexts.a]\n# name_space\nname_space = 'x'",
            ", line 4: unknown name 'name_space': did you mean 'namespace'?",
        ),
        ("current = 'a'\n[contexts.a]\nendpoint = 'current'\ncurrent = 'x'", ", line 4: unknown name 'current'"),
        ("[contexts.a]\nnamespace = 'x'\n[contexts.b]\nnamespace = 5", ", line 4: namespace must be a string, not 5"),
        ("current = 'b'\n[contexts.a]", "no context is named 'b': valid names: a"),
        ("current =", "is not valid TOML: Invalid value (at end of document)"),
        (b"current = '\xff'", "is not valid TOML: 'utf-8' codec"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(file: Path, content: str | bytes, says: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidSetting) as refused:
        read_contexts()
    assert says in str(refused.value)
