"""`kubetrain translate` for PyTorch and TensorFlow: the pods of the run start the program of the hand-written job."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.run.request import merged
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_pipelines.requests.planned_run import planned_run
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_pipelines.translate.translation import Translation
from support.manifests import templates_in
from support.translated import Manifest, changed, translated, unmapped

PLACES = {"data": {"uri": "s3://bucket/flowers"}, "model": {"uri": "s3://bucket/models"}}
VARIABLES = {"RATE": "0.1", "NOTE": 'say "so"', "TOKENS": "$(HF_TOKEN)"}
SECRETS = [
    {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    {"name": "hub", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "name", "optional": True}}},
    {"name": "wandb_key", "value": "hidden"},
]
RECORDER = """
import json, os, sys
from pathlib import Path
folder = Path(os.environ.get("KUBETRAIN_OUTPUT", os.environ["SEEN"]), "export")
folder.mkdir(parents=True, exist_ok=True)
(folder / "seen.json").write_text(json.dumps([sys.argv[1:], os.getcwd()]))
"""
TORCHRUN = """#!/bin/sh
while case "$1" in -*) ;; *) false; esac; do shift; done
exec python "$@"
"""
"""Starts the script as one process."""


def job_with(kind: str, *, master: Manifest | None = None, spec: Manifest | None = None, **container: Any) -> str:
    framework = "pytorch" if kind == "PyTorchJob" else "tensorflow"
    variables = [*({"name": name, "value": value} for name, value in VARIABLES.items()), *SECRETS]

    def role(own: Manifest) -> Manifest:
        return {"template": {"spec": {"containers": [{"name": framework, "image": "a", "env": variables, **own}]}}}

    field = "pytorchReplicaSpecs" if kind == "PyTorchJob" else "tfReplicaSpecs"
    roles = {"Worker": {"replicas": 2, **role(container)}, **({"Master": role(master)} if master is not None else {})}
    job = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "flowers"}, "spec": {field: roles}}
    job["spec"] |= spec or {}  # type: ignore[operator]
    return json.dumps(job)


def entry_of(translation: Translation) -> Manifest:
    return dict(translation.request.get("train", {}).get("entry", {}))


def entry_for(*command: str, kind: str = "PyTorchJob", **fields: Any) -> Manifest:
    return entry_of(translated(job_with(kind, command=list(command), **fields)))


def expanded(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Replace references to variables as Kubernetes does."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return [re.sub(r"\$\$|\$\(([^)]*)\)", value, word) for word in command]


class Pod:
    """Runs the commands of containers in a folder that stands for an image."""

    def __init__(self, image: Path) -> None:
        self._image, self._number = image, 0
        for folder in (image / "bin", image / "code"):
            folder.mkdir(parents=True)
        for path, text in {"bin/torchrun": TORCHRUN, "train.py": RECORDER, "code/train.py": RECORDER}.items():
            (image / path).write_text(text)
        (image / "bin/torchrun").chmod(0o755)
        (image / "bin/python").symlink_to(sys.executable)

    def run(self, command: Sequence[str], variables: Mapping[str, str], folder: str = "") -> list[Any]:
        """Return the arguments that the program saw, and its folder."""
        self._number += 1
        output = self._image / f"output-{self._number}"
        places = {"--output-dir": output, "--data-dir": self._image / "code"}
        words = [str(places.get(before, word)) for before, word in zip(["", *command], command, strict=False)]
        environment = {"PATH": f"{self._image / 'bin'}:{os.environ['PATH']}", "SEEN": str(output), **variables}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        subprocess.run(expanded(words, variables), check=True, cwd=folder or self._image, env=environment, timeout=60)
        return list(json.loads((output / "export" / "seen.json").read_text()))


def command_made(translation: Translation) -> list[str]:
    """The command of the pods that the run creates, without torchrun."""
    asked = RequestFile(pipeline=translation.pipeline, request=merged(translation.request, PLACES))
    made = planned_manifests(planned_run(asked, "run-1"))
    (training,) = (each for each in made if "launch-training" in each["metadata"]["name"])
    commands = [each["spec"]["containers"][0]["command"] for each in templates_in(training)]
    assert all(each == commands[0] for each in commands)
    own = next(number for number, word in enumerate(commands[0]) if word.endswith(".own_code"))
    return ["python", "-m", *commands[0][own:]]


@pytest.mark.parametrize(
    ("kind", "container", "keeps_folder"),
    [
        ("TFJob", {"command": ["python", "-u", "train.py", "two words", "$HOME", "--rate=$(RATE)", "$$(RATE)"]}, True),
        ("TFJob", {"command": ["python", "train.py", "$$5", "$5", "$$$", "$$$(RATE)", "$$$$(RATE)", "$$(a $$)"]}, True),
        ("TFJob", {"command": ["python", "-c", "import train", "$$5", "$$$$", "$(no $$ name)"]}, True),
        ("TFJob", {"command": ["sh", "-c", "python train.py $$RATE '$$5' $(echo $$ | tr -d 0-9)"]}, True),
        ("TFJob", {"command": ["python", "train.py", "$(NOTE)", "$(TOKENS)", "$(hub)", "$(wandb_key)"]}, True),
        (
            "PyTorchJob",
            {"command": ["torchrun", "--nproc_per_node=1", "train.py"], "args": ["--note", "$(gone)"]},
            True,
        ),
        (
            "PyTorchJob",
            {"command": ["sh", "-c", "exec torchrun --nnodes=$N train.py --note 'a b' \\\n \"c d\"\n"]},
            True,
        ),
        ("PyTorchJob", {"command": ["sh", "-ec", "python train.py --rate $RATE $(RATE) $(echo $RATE) && true"]}, True),
        ("PyTorchJob", {"command": ["python", "train.py", "x"], "workingDir": "code"}, False),
        ("TFJob", {"command": ["sh", "-c", "ls; python train.py 'x y' $RATE"], "workingDir": "code"}, True),
        ("TFJob", {"command": ["python", "-c", "import train", "$(RATE)"], "workingDir": "code"}, True),
    ],
)
def test_pods_run_the_program_of_the_job(kind: str, container: Manifest, keeps_folder: bool, tmp_path: Path) -> None:
    pod = Pod(tmp_path / "image")
    if folder := container.get("workingDir", ""):
        folder = str(tmp_path / "image" / folder)
        container = {**container, "workingDir": folder}
    variables = VARIABLES | {"hub": "team", "wandb_key": "hidden"}
    theirs = pod.run([*container["command"], *container.get("args", [])], variables, folder)
    translation = translated(job_with(kind, **container))
    made = pod.run(command_made(translation), variables)
    assert made[0] == theirs[0]
    assert (made[1] == theirs[1]) == keeps_folder
    assert any("not in" in note for note in translation.notes) != keeps_folder


SCRIPT = {"script": "train.py", "args": ["--epochs", "3"]}


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "/usr/bin/python3.11 -u ./train.py",
        "torchrun --standalone --nproc_per_node 2 train.py",
        "/opt/bin/torchrun --node_rank=$(RANK) --master_addr $(MASTER_ADDR) train.py",
        "python3 -u -m torch.distributed.run --nnodes=2 train.py",
        "python -m torch.distributed.launch --use_env train.py",
    ],
)
def test_a_script_of_python_or_torchrun_runs_in_each_process(command: str) -> None:
    assert entry_for(*command.split(), "--epochs", "3") == SCRIPT
    if "$" not in command:
        assert entry_for("bash", "-c", f"{command} --epochs 3") == SCRIPT


def test_a_shell_that_starts_only_the_script_is_left_out() -> None:
    assert entry_for("/bin/sh", "-ec", "exec torchrun --nnodes=$N train.py \\\n  --epochs '3'\n") == SCRIPT


def test_a_text_like_a_reference_stays_one() -> None:
    assert entry_for("python", "train.py", "$$(HF_TOKEN)")["args"] == ["$$(HF_TOKEN)"]


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-m", "package.train", "config.py"],
        ["torchrun", "--nproc-per-node=2", "-m", "package.train", "config.py"],
        ["torchrun", "--module", "package.train", "config.py"],
        ["torchrun", "--no_python", "./run.sh", "config.py"],
        ["accelerate", "launch", "train.py"],
        ["./train.py"],
        ["sh", "-c", "pip install . && torchrun train.py"],
        ["sh", "-c", "torchrun train.py --out $HOME/out"],
        ["sh", "-c", "torchrun train.py --out $(hostname) > log"],
        ["sh", "-c", "torchrun train.py", "name"],
        ["sh", "-c", "torchrun train.py && touch done"],
        ["sh", "-c", "A=1 torchrun train.py"],
        [
            "bash",
            "-c",
            '\nfolder=$(mktemp -d)\nprintf \'x\' > "$folder/a.py"\ntorchrun "$folder/a.py"',
        ],  # Trainer's SDK
        ["python", "-O", "train.py"],
    ],
)
def test_another_program_runs_once_in_each_pod_as_it_is(command: list[str]) -> None:
    assert entry_for(*command) == {"command": command}


def test_a_folder_stays_the_scripts_or_the_commands() -> None:
    assert entry_for("torchrun", "./train.py", workingDir="/code") == {"script": "/code/train.py"}
    assert entry_for("torchrun", "/app/train.py", workingDir="/code") == {"script": "/app/train.py"}
    inside = ["sh", "-c", "cd '/my code' && exec \"$@\"", "sh"]
    assert entry_for("python", "-m", "train", workingDir="/my code") == {"command": [*inside, "python", "-m", "train"]}


ELASTIC = {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2}}


@pytest.mark.parametrize(
    ("container", "spec", "remedy"),
    [
        ({"command": ["python", "train.py", "--api-key=hidden"]}, {}, r"pods\.secret_env.* set train\.entry"),
        ({"command": ["python", "train.py", "--rank=$(RANK)"]}, {}, r"\$\(RANK\).*read the variable"),
        ({"command": ["python", "-m", "train"]}, ELASTIC, "elastic pods .* from a script, or remove pods.min_workers"),
        ({"args": ["--epochs=3"]}, {}, "beginning of the command is in the image"),
        ({"args": ["config.py"]}, {}, "beginning of the command is in the image"),
    ],
)
def test_a_program_that_cannot_be_the_entry_is_named_with_the_remedy(
    container: Manifest, spec: Manifest, remedy: str
) -> None:
    translation = translated(job_with("PyTorchJob", spec=spec, workingDir="/code", **container))
    assert entry_of(translation) == {"script": "<SCRIPT>"}, "otherwise kubetrain's own trainer would run instead"
    assert "train.entry" in translation.missing
    named = {each.path.rpartition(".")[2]: each for each in translation.unmapped}
    assert re.search(remedy, named[next(iter(container))].instead)
    assert "docs/own_code.md" in named["workingDir"].instead
    assert "hidden" not in str(translation)


def test_an_elastic_script_and_arguments_with_their_program_are_taken() -> None:
    assert entry_for("torchrun", "--nnodes=1:2", "train.py", spec=ELASTIC) == {"script": "train.py"}
    assert entry_of(translated(job_with("TFJob", args=["python", "train.py"]))) == {"script": "train.py"}


def test_a_job_without_a_command_says_where_it_belongs() -> None:
    translation = translated(job_with("PyTorchJob", resources={"limits": {"nvidia.com/gpu": 8}}))
    assert "train.entry" in translation.missing
    assert any("no command: set train.entry" in note for note in translation.notes)
    assert any("without train.entry, the run uses kubetrain's own trainer" in note for note in translation.notes)


def test_roles_may_differ_in_options_of_torchrun_only() -> None:
    worker = ["torchrun", "--node_rank=1", "train.py"]
    same = translated(
        job_with("PyTorchJob", command=worker, master={"command": ["torchrun", "--node_rank=0", "train.py"]})
    )
    assert entry_of(same) == {"script": "train.py"}
    for master in ({"command": ["torchrun", "other.py"]}, {"command": worker, "workingDir": "/x"}, {}):
        other = translated(job_with("PyTorchJob", command=worker, master=master))
        assert "train.entry" in other.missing
        path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[pytorch].command"
        assert "roles run different programs" in {each.path: each.instead for each in other.unmapped}[path]


@pytest.mark.parametrize(
    ("command", "folder", "note"),
    [
        ("torchrun --tee 3 --rdzv_conf=timeout=9 --nnodes 2 train.py", "", "without your options --tee, --rdzv-conf$"),
        ("torchrun --nnodes=4 train.py", "", "without your --nnodes=4: .* 2 workers .* set pods.workers"),
        ("torchrun --standalone --nnodes 1 train.py", "", "without your --nnodes=1:"),
        ("python -m torch.distributed.launch train.py", "", "--local-rank .* read LOCAL_RANK"),
        ("python train.py", "/code", "WORKDIR of the image, not in /code"),
    ],
)
def test_what_differs_for_the_program_is_said(command: str, folder: str, note: str) -> None:
    def notes(command: str, **fields: str) -> list[str]:
        return translated(job_with("PyTorchJob", command=command.split(), **fields)).notes

    assert any(re.search(note, each) for each in notes(command, workingDir=folder))
    assert any("KUBETRAIN_OUTPUT/export" in each for each in notes(command))
    for other in (
        "torchrun --nnodes=2 train.py",
        "torchrun --nnodes=$N train.py",
        "python -m torch.distributed.launch --use_env train.py",
    ):
        assert not any(re.search(note, each) for each in notes(other))
    assert not any(re.search(note, each) for each in notes("torchrun -m train"))


RUNTIME_COMMAND = ("image: pytorch/pytorch:2.7.0", "image: p\n                  {}")


@pytest.mark.parametrize(
    ("of_runtime", "of_job", "entry"),
    [
        ("command: [torchrun]", "args: [train.py, --epochs=3]", {"script": "train.py", "args": ["--epochs=3"]}),
        ("args: [train.py]", "command: [python, -u]", {"script": "train.py"}),
        ("command: [torchrun, other.py]", "command: [torchrun, train.py]", {"script": "train.py"}),
        ("workingDir: /code", "command: [python, train.py]", {"script": "/code/train.py"}),
    ],
)
def test_a_train_job_completes_the_command_of_its_runtime(of_runtime: str, of_job: str, entry: Manifest) -> None:
    old, new = RUNTIME_COMMAND
    translation = changed("train_job", (old, new.format(of_runtime)), ("command: [torchrun, train.py]", of_job))
    assert entry_of(translation) == entry
    assert not [path for path in unmapped(translation) if path.endswith(("command", "args", "workingDir"))]


def test_an_elastic_job_starts_what_its_image_passes_to_torchrun() -> None:
    job = {"script": "/workspace/main.py", "args": ["--epochs=20", "/mnt/imagenet"]}
    assert entry_of(changed("elastic_job")) == job
    assert (
        entry_of(
            changed(
                "elastic_job", ("args:", "command: [python, -m, torchelastic.distributed.launch]\n            args:")
            )
        )
        == job
    )
