"""README, CONTRIBUTING and the pages name only what exists, and their commands are valid."""

import re
import shlex
from pathlib import Path

import click
import pytest

from kubetrain_pipelines.cli.main import kubetrain
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_trainer.settings.model_names import KERAS, TORCHVISION

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "deploy/README.md", "components/kubetrain_components/README.md")
    ),
    *(ROOT / "docs").rglob("*.md"),
]
COMMAND_PAGE = (ROOT / "docs" / "commands.md").read_text()


def commands_of(page: Path) -> list[list[str]]:
    return [
        shlex.split(command.removeprefix(".venv/bin/"), comments=True)
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)
        for command in block.replace("\\\n", " ").splitlines()
    ]


COMMANDS = [command for page in PAGES for command in commands_of(page) if command[:1] == ["kubetrain"]]


def test_the_two_commands_come_first() -> None:
    assert commands_of(ROOT / "README.md")[:2] == [["make", "run"], ["make", "run", "PIPELINE=train-tensorflow"]]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_parses_and_its_settings_have_valid_values(command: list[str]) -> None:
    parser, arguments = kubetrain.commands[command[1]], command[2:]
    if isinstance(parser, click.Group) and arguments:
        parser = parser.commands[arguments.pop(0)]
    context = parser.make_context(command[1], arguments, resilient_parsing=False)
    pairs = context.params.get("pairs", ())
    assert not AskedRun(pairs=pairs).read().own, "each has a group"


def test_every_command_is_listed_and_no_other() -> None:
    listed = set(re.findall(r"^\| `kubetrain ([a-z]+)", COMMAND_PAGE, re.M))
    assert listed == set(kubetrain.commands)
    for name, command in kubetrain.commands.items():
        row = next(line for line in COMMAND_PAGE.splitlines() if line.startswith(f"| `kubetrain {name}"))
        parsers = [command, *command.commands.values()] if isinstance(command, click.Group) else [command]
        options = {option for parser in parsers for parameter in parser.params for option in parameter.opts}
        named = set(re.findall(r"--[a-z][a-z0-9-]+", row))
        assert named <= options
        assert {"--code", "--run-id"} & options <= named
    assert isinstance(kubetrain, click.Group)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_exists(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    named = re.findall(r"`((?:pipelines|components|trainer|examples|compiled|deploy|tests)/[\w./]*)`", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_heading_that_a_link_names_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text())
    named = [((page.parent / path) if path else page, anchor) for path, anchor in links]
    assert [f"{path}#{anchor}" for path, anchor in named if anchor not in anchors_of(path)] == []


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_first_pages_stay_short(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= (110 if name == "README.md" else 150)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text() + (ROOT / "docs" / "administrators" / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\(([\w./]+\.md)\)", index))


def test_the_map_of_helpers_is_complete() -> None:
    support = ROOT / "tests" / "support"
    rows = re.findall(r"^\| (`.*?) \|", (support / "README.md").read_text(), re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(path.stem for path in support.glob("[!_]*.py"))


def test_the_readme_names_the_pinned_versions() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    torch, cuda, tensorflow = (
        re.search(rf"^{name}==(\d+\.\d+)", constraints, re.M)[1]  # type: ignore[index]
        for name in ("torch", "cuda-toolkit", "tensorflow")
    )
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"PyTorch {torch} (CUDA {cuda}) needs driver R580 or later, and TensorFlow {tensorflow} (CUDA 12)" in readme
    assert "nvidia-cuda-runtime-cu12==" in constraints, "TensorFlow has another CUDA"
    assert cuda.startswith("13."), "PyTorch needs another driver: change README.md and this line"


def test_the_counted_models_are_as_many() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    assert f"(torchvision: {len(TORCHVISION)} models)" in page
    assert f"(Keras: {len(KERAS)} models)" in page
