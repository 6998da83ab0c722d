"""Imports only ever point rightwards: pipelines → components → trainer. The table of the design, enforced."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kubetrain_components.run.stages import STAGES

ROOT = Path(__file__).parents[2]
STANDARD = set(sys.stdlib_module_names)
TRAINER, COMPONENTS, PIPELINES = "kubetrain_trainer", "kubetrain_components", "kubetrain_pipelines"
PYTHON = "kubetrain"
SOURCES = {
    TRAINER: ROOT / "trainer" / TRAINER,
    COMPONENTS: ROOT / "components" / COMPONENTS,
    PIPELINES: ROOT / "pipelines" / PIPELINES,
    PYTHON: ROOT / "pipelines" / PYTHON,
}
STEPS = {stage.name for stage in STAGES}
FRAMEWORKS = {
    "pytorch_ddp": {"torch", "torchvision", "numpy", "PIL", "safetensors"},
    "tensorflow_multiworker": {"tensorflow", "keras", "numpy", "h5py"},
}
# The library of each callback of kubetrain_trainer/callbacks/, which users import beside it.
CALLBACKS = {"lightning": {"lightning"}, "transformers": {"transformers", "accelerate"}, "keras": {"keras"}}
# The one library of each module that has one.
VENDORS = {
    "object_store/checksums.py": {"awscrt"},
    "object_store/http_client.py": {"urllib3"},
    "object_store/azure/credentials.py": {"azure"},
    "object_store/gcs/credentials.py": {"google"},
    "object_store/s3/connect.py": {"urllib3"},
    "object_store/s3/origin.py": {"botocore"},
    "object_store/s3/requests.py": {"botocore"},
    "object_store/s3/store.py": {"botocore"},
    "object_store/s3/writer.py": {"boto3", "botocore"},
    "jobs/kubernetes/manifests/operator_specs.py": {"kubeflow", "kubernetes"},  # models alone, no client
    "jobs/kubernetes/access/kubeconfig.py": {"yaml"},
    "jobs/kubernetes/access/transport.py": {"urllib3"},
    "jobs/kubernetes/api.py": {"urllib3"},
    "jobs/kubernetes/request.py": {"urllib3"},
    "jobs/local/process_guard.py": {"psutil"},
    "jobs/local/record.py": {"psutil"},
    "manifest_text.py": {"yaml"},
    "pack_dataset/smaller_images.py": {"PIL"},
    "evaluate_model/report.py": {"jinja2", "markupsafe"},
    "evaluate_model/plots.py": {"matplotlib"},
}
# In pipelines/kubetrain_pipelines/kubeflow/: libraries that a module needs; never kfp, whose import takes longer than
# a command.
KUBEFLOW_VENDORS = {
    "compiled_file.py": {"yaml"},
    "kfp_api.py": {"urllib3"},
}
# What only these may do: wire adapters.
WIRING = {
    "sites/local.py": {f"{COMPONENTS}.jobs.local.backend"},
    "sites/cluster.py": {f"{COMPONENTS}.jobs.kubernetes.backend", f"{COMPONENTS}.expose_dataset.kubernetes_claims"},
}
ADAPTERS = (
    f"{COMPONENTS}.jobs.kubernetes",
    f"{COMPONENTS}.jobs.local",
    f"{COMPONENTS}.object_store.s3",
    f"{COMPONENTS}.object_store.hugging_face",
    f"{COMPONENTS}.object_store.gcs",
    f"{COMPONENTS}.object_store.azure",
    f"{COMPONENTS}.object_store.directory_store",
    f"{COMPONENTS}.expose_dataset.kubernetes_claims",
)
# Manifests as values: they stand beside the adapter, and need no cluster.
PURE = f"{COMPONENTS}.jobs.kubernetes.manifests"


# A folder imports from folders below it; "" is the package's root. Folders of one line know nothing of each other.
FLOORS = {
    COMPONENTS: [
        {"sites"},
        {*STEPS, "pack_dataset", "bring_code", "fetch_model", "serve_shards", "keep_output"},
        {"run"},
        {"expose_dataset"},
        {"jobs/kubernetes", "jobs/local"},
        {"jobs/kubernetes/access", "jobs/kubernetes/manifests"},
        {"jobs"},
        {"object_store/s3", "object_store/hugging_face", "object_store/gcs", "object_store/azure"},
        {"object_store"},
        {""},
    ],
    PYTHON: [{""}],
    PIPELINES: [
        {"cli"},
        {"doctor", "diagnose", "status"},
        {"kubeflow", "local_run", "translate"},
        {"requests", "jobs"},
        {"definitions"},
        {""},
    ],
    TRAINER: [
        {*FRAMEWORKS, "callbacks"},
        {"pytorch_ddp/images", "pytorch_ddp/launching", "tensorflow_multiworker/images"},
        {"loop", "own_code"},
        {"reporting", "models"},
        {"data"},
        {"processes"},
        {"output"},
        {"settings"},
        {""},
    ],
}
# They choose an adapter when they are called; a package's door imports what users ask it for.
CHOOSERS = {"run/site.py", "object_store/open_store.py", "__init__.py"}


def modules_of(package: str) -> list[Path]:
    return sorted(SOURCES[package].rglob("*.py"))


def imports_of(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(str(node.module))
    return found


def foreign(modules: set[str]) -> set[str]:
    """Top names that are neither the standard library's nor ours."""
    return {module.split(".")[0] for module in modules} - STANDARD - SOURCES.keys()


def contract() -> list[Path]:
    """The trainer's files that components import too: all but the frameworks', the callbacks' and the client of Ray."""
    apart = [SOURCES[TRAINER] / folder for folder in (*FRAMEWORKS, "callbacks")]
    apart += [SOURCES[TRAINER] / "__init__.py", SOURCES[TRAINER] / "own_code" / "ray_job.py"]
    return [path for path in modules_of(TRAINER) if not any(path.is_relative_to(folder) for folder in apart)]


def adapters_in(modules: set[str]) -> set[str]:
    return {module for module in modules if module.startswith(ADAPTERS) and not module.startswith(PURE)}


def name_of(path: Path, package: str) -> str:
    return path.relative_to(SOURCES[package]).as_posix()


def imported_files(path: Path, package: str) -> set[Path]:
    """The files of the same package that a file imports."""
    files = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
            modules = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
            files |= {SOURCES[package].parent / (module.replace(".", "/") + ".py") for module in modules}
    return {file for file in files if file.is_file()}


@pytest.mark.parametrize("package", SOURCES)
def test_folders_import_only_what_lies_below_them(package: str) -> None:
    floor_of = {folder: number for number, folders in enumerate(FLOORS[package]) for folder in folders}
    for path in modules_of(package):
        if name_of(path, package) in CHOOSERS:
            continue
        folder = name_of(path.parent, package).removeprefix(".")
        for other in imported_files(path, package):
            imported = name_of(other.parent, package).removeprefix(".")
            assert imported == folder or floor_of[imported] > floor_of[folder], f"{path} imports {other}"


@pytest.mark.parametrize("package", SOURCES)
def test_no_files_import_one_another_in_a_circle(package: str) -> None:
    waiting = {path: imported_files(path, package) for path in modules_of(package)}
    waiting |= {SOURCES[package] / name: set() for name in CHOOSERS if (SOURCES[package] / name) in waiting}
    while ready := {path for path, imports in waiting.items() if not imports & waiting.keys()}:
        waiting = {path: imports for path, imports in waiting.items() if path not in ready}
    assert not waiting


@pytest.mark.parametrize("path", contract(), ids=lambda path: name_of(path, TRAINER))
def test_the_trainers_contract_is_standard_library_only(path: Path) -> None:
    imported = imports_of(path)
    assert foreign(imported) == set()
    assert not any(module.startswith((COMPONENTS, PIPELINES)) for module in imported)
    assert not any(framework in module for module in imported for framework in FRAMEWORKS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_folder_knows_its_framework_and_the_contract_only(framework: str) -> None:
    others = set(FRAMEWORKS) - {framework}
    for path in (SOURCES[TRAINER] / framework).rglob("*.py"):
        imported = imports_of(path)
        assert foreign(imported) <= FRAMEWORKS[framework], path
        assert not any(other in module for module in imported for other in others), path
        assert not any(module.startswith((COMPONENTS, PIPELINES)) for module in imported), path


@pytest.mark.parametrize("library", CALLBACKS)
def test_a_callback_knows_its_library_and_the_session_only(library: str) -> None:
    imported = imports_of(SOURCES[TRAINER] / "callbacks" / f"{library}.py")
    assert foreign(imported) == CALLBACKS[library]
    assert {module for module in imported if module.startswith(TRAINER)} <= {TRAINER, f"{TRAINER}.own_code"}
    assert {path.stem for path in (SOURCES[TRAINER] / "callbacks").glob("*.py")} == {*CALLBACKS, "__init__"}


def test_the_two_trainers_are_laid_out_alike() -> None:
    pytorch, tensorflow = (
        {
            path.relative_to(SOURCES[TRAINER] / framework).as_posix()
            for path in (SOURCES[TRAINER] / framework).rglob("*.py")
        }
        for framework in FRAMEWORKS
    )
    # torchrun starts PyTorch's processes, and they start others to load samples; TensorFlow has neither.
    of_torchrun = {name for name in pytorch if name.startswith("launching/")}
    of_torchrun |= {"preflight.py"}  # TensorFlow's processes only exchange what a strategy does
    of_loading = {"loading_processes.py", "sendable.py", "streams.py", "device_batches.py"}
    of_models = {"data_parallel.py", "structures.py"}  # Keras and tf.nest do this
    # Each of TensorFlow's processes has the whole model and reads the whole state.
    of_shards = {"sharding.py", "shard_model.py"}
    of_states = {"joint_writing.py", "state_files.py", "staging.py"}
    of_models |= {"export.py"}  # TensorFlow writes weights in one format
    of_time = {"timing.py"}  # a graph of TensorFlow notes the time itself
    of_time |= {"operations.py"}  # PyTorch itself counts those of a model
    apart = of_torchrun | of_loading | of_models | of_shards | of_states | of_time
    assert pytorch - apart == tensorflow


@pytest.mark.parametrize("path", modules_of(COMPONENTS), ids=lambda path: name_of(path, COMPONENTS))
def test_components_import_what_their_place_allows(path: Path) -> None:
    name, imported = name_of(path, COMPONENTS), imports_of(path)
    assert not any(module.startswith(PIPELINES) for module in imported)
    assert not any(framework in module for module in imported for framework in FRAMEWORKS)
    if path.name == "component.py":
        assert foreign(imported) == {"kfp"}
        allowed = {COMPONENTS, "kfp", "typing"}
        assert imports_of(path, top_level_only=True) <= allowed, "KFP ships the function's body only"
        return
    assert foreign(imported) <= VENDORS.get(name, set())
    if not name.startswith(("jobs/", "object_store/")) and name != "expose_dataset/kubernetes_claims.py":
        assert adapters_in(imported) <= WIRING.get(name, set())


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_step_knows_no_other_step(step: str) -> None:
    folder = SOURCES[COMPONENTS] / step
    assert f'.stage("{step}", run_id)' in (folder / "component.py").read_text()
    for path in folder.glob("*.py"):
        for module in imports_of(path):
            others = [other for other in STEPS - {step} if module.startswith(f"{COMPONENTS}.{other}")]
            assert not others, f"{path} imports {module}"


@pytest.mark.parametrize(
    "name",
    [
        "train_pytorch",
        "train_tensorflow",
        "sync_only",
        "training_stages",
        "task_settings",
        "images",
        "project",
        "compile",
    ],
)
def test_pipelines_know_kfp_and_component_files_only(name: str) -> None:
    imported = imports_of(SOURCES[PIPELINES] / "definitions" / f"{name}.py")
    assert foreign(imported) <= {"kfp"}
    from_components = {module for module in imported if module.startswith(f"{COMPONENTS}.")}
    constants = {f"{COMPONENTS}.{name}" for name in ("object_store.credentials", "run.stages", "jobs.annotations")}
    assert all(module.endswith(".component") for module in from_components - constants)


@pytest.mark.parametrize("path", sorted((SOURCES[PIPELINES] / "kubeflow").glob("*.py")), ids=lambda path: path.name)
def test_commands_for_kubeflow_pipelines_do_without_its_client(path: Path) -> None:
    imported = imports_of(path)
    assert foreign(imported) <= KUBEFLOW_VENDORS.get(path.name, set())
    assert path.name in ("run_in_cluster.py", "cron_zone.py") or adapters_in(imported) <= {
        f"{COMPONENTS}.jobs.kubernetes.errors"
    }


@pytest.mark.parametrize("path", modules_of(PYTHON), ids=lambda path: path.name)
def test_python_calls_what_the_commands_call(path: Path) -> None:
    imported = imports_of(path)
    assert foreign(imported) <= ({"rich"} if path.name == "local_runs.py" else set())
    assert not any(module.startswith((f"{PIPELINES}.cli", f"{PIPELINES}.doctor")) for module in imported)
    assert adapters_in(imported) == set()


@pytest.mark.parametrize("package", [TRAINER, COMPONENTS, PIPELINES])
def test_no_other_package_imports_the_one_for_python(package: str) -> None:
    for path in modules_of(package):
        assert not any(f"{module}.".startswith(f"{PYTHON}.") for module in imports_of(path)), path


@pytest.mark.parametrize("path", sorted((SOURCES[PIPELINES] / "doctor").glob("*.py")), ids=lambda path: path.name)
def test_the_doctor_asks_in_some_files_and_judges_in_the_others(path: Path) -> None:
    imported = imports_of(path)
    asks = bool(adapters_in(imported)) or any(module.startswith("urllib") for module in imported)
    assert asks == (path.name in {"cluster.py", "examine.py", "pipelines_api.py", "probes.py"})
    # What pods run brings nothing along but what their images have.
    assert foreign(imported) <= {"yaml"}


@pytest.mark.parametrize("package", SOURCES)
def test_no_file_is_too_long_to_read(package: str) -> None:
    assert {path.name for path in modules_of(package) if len(path.read_text().splitlines()) > 320} == set()


def test_the_contract_imports_where_nothing_is_installed() -> None:
    """Trainer images stay bare: the contract must do without kfp, kubernetes and boto3."""
    files = [path.relative_to(SOURCES[TRAINER].parent).with_suffix("") for path in contract()]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    program = f"""
import sys
for blocked in ("kfp", "kubernetes", "boto3", "torch", "tensorflow", "numpy", "yaml", "click"):
    sys.modules[blocked] = None
sys.path.insert(0, {str(SOURCES[TRAINER].parent)!r})
import importlib
for name in {names!r}:
    importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-I", "-c", program], check=True)


def test_the_help_is_printed_without_heavy_imports() -> None:
    """Otherwise `kubetrain --help` would take seconds."""
    program = "import sys; from kubetrain_pipelines.cli.main import kubetrain; "
    program += "kubetrain(['--help'], standalone_mode=False); print(*sys.modules, file=sys.stderr)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(finished.stderr.split())
    assert "Commands:" in finished.stdout
    assert {"kfp", "kubernetes", "yaml", "rich", "boto3", "urllib3", "psutil"} & imported == set()
    ours = {".".join(name.split(".")[:2]) for name in imported if name.split(".")[0] in SOURCES}
    apart = {COMPONENTS, PIPELINES, TRAINER, f"{PIPELINES}.cli", f"{PIPELINES}.extras", f"{TRAINER}.errors"}
    assert ours <= apart


def test_each_test_file_has_a_name_of_its_own() -> None:
    """Pytest imports them as top-level modules, and only the first of a name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
