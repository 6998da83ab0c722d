"""The example notebook, executed cell by cell, with a server in place of Kubeflow Pipelines."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.cli import processes_of
from support.kfp_runs import kfp_without_cluster, play

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def texts_of(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what each code cell showed."""
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(each.get("text", "") + str(each.get("data", "")) for each in cell) for cell in outputs]


def test_no_output_is_committed() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in cells if cell.outputs or cell.execution_count] == []


def test_a_notebook_shows_an_error_as_its_sentence(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("import kubetrain\nkubetrain.run('train-torch')")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = notebook.cells[0].outputs
    assert len(shown.traceback) == 1
    assert shown.traceback[0].startswith("InvalidSetting: unknown pipeline 'train-torch': ")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_engineer_gets_from_the_first_run_to_a_submitted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shutil.copytree(ROOT / "compiled", tmp_path / "compiled")
    (tmp_path / "examples").mkdir()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with kfp_without_cluster() as server:
        monkeypatch.setenv("KUBETRAIN_KFP_ENDPOINT", server.endpoint)
        play(server, "run_succeeded")
        NotebookClient(
            notebook, kernel_name="python3", timeout=390, resources={"metadata": {"path": str(tmp_path / "examples")}}
        ).execute()
    first, facts, changed, refused, _, own, submitted = texts_of(notebook)
    assert "launch_training: step " in first
    kinds = [each.output_type for cell in notebook.cells for each in cell.get("outputs", ())]
    assert kinds.count("display_data") == 1, "progress is plain text, and only the last cell displays something"
    assert "<iframe sandbox srcdoc=" in first
    assert "\x1b" not in first
    assert "'accuracy': 0." in facts
    assert "with a lower learning rate" in changed
    assert refused == "there is no setting 'train.learning_rat': did you mean 'train.learning_rate'?\n"
    assert "1 file of a function" in own
    assert "promote_model" in own
    assert "uploaded train-pytorch-" in submitted
    assert ">succeeded</span>" in submitted
    assert processes_of(tmp_path) == []
