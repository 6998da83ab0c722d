"""`kubetrain train`: run one training job and follow it, or print its manifest."""

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.bring_code.pack import PackedCode
from kubetrain_components.interrupts import end_at_hangup, interrupted_by_sigterm
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import OtherSettings
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS
from kubetrain_components.jobs.job_logs import OnLine, important_lines, print_line
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.jobs.names import check_object_name
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.launch_training.launch import launch_training, with_launcher
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.manifest_text import as_yaml
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters, check_on_one_machine
from kubetrain_components.run.training_time import TrainingTime, account_of
from kubetrain_components.sync_dataset.publish import published_versions, read_version
from kubetrain_pipelines.cli.render import NOTE_ON_AUTO, comment
from kubetrain_pipelines.cli.train_settings import STORE, check_settings, fetching_code
from kubetrain_pipelines.definitions.images import TRAINERS, image_warnings
from kubetrain_pipelines.definitions.pipeline_parameters import PARAMETERS, Parameter
from kubetrain_pipelines.requests import bring_code, say
from kubetrain_pipelines.requests.parse_parameters import parse_parameters, secret_warnings
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig

PIPELINE = "train"
VERSION_PATH = re.compile(r"versions/([0-9a-f]{16})/data")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    framework: str
    data: str
    output: str
    run_id: str
    workers: int
    min_workers: int
    max_workers: int
    processes_per_worker: int
    launcher: str
    max_restarts: int | None
    pairs: tuple[str, ...]
    params: Path | None = None
    code: Path | None = None
    cluster: bool = False
    namespace: str = ""
    quiet: bool = False
    follow_all: bool = False
    dry_run: bool = False
    command: tuple[str, ...] = ()


def train_and_show(options: TrainOptions) -> None:
    _check_options(options)
    code = _packed_code(options)
    training = training_of(options, code)
    if options.dry_run:
        print_manifests(training)
        return
    print(f"run {training.run_id} (resume it with --run-id)", flush=True)
    for warning in (*training.placement.warnings(), *image_warnings(training.placement.image)):
        print(f"warning: {warning}", flush=True)
    with interrupted_by_sigterm(), _code_here(options, code), _backend(options, training) as backend:
        training = with_launcher(training, backend) if options.cluster else training
        on_line = important_lines(training.to_job().lead, print_line) if options.quiet else print_line
        launch = launch_training if options.cluster else _launch_here
        result = launch(training, backend, on_line, follow_all=options.follow_all)
    place = f"PVC {options.output}, folder {training.run_id}" if options.cluster else f"{training.output_dir}"
    steps = f"trained {result['step']} steps; " if result["checkpoint"] else ""
    print(f"{steps}the model is in {place}/export")
    print_time(TrainingTime.from_json(result["time"]))


def _launch_here(training: TrainingJob, backend: JobBackend, on_line: OnLine, *, follow_all: bool) -> dict[str, Any]:
    """Replace the advice to delete the job of a run with other settings: here, the run's output forbids them too."""
    output = TrainingOutput(training.output_dir)
    try:
        return launch_training(training, backend, on_line, follow_all=follow_all)
    except OtherSettings:
        changed = _changed_settings(training)
        if changed and output.is_finished() and {*changed} <= {*TrainConfig.names_with("is_changeable")}:
            print(f"run {training.run_id} is complete, so these have no effect: {', '.join(changed)}", flush=True)
            finished = replace(training, config=output.train_config())
            return launch_training(finished, backend, on_line, follow_all=follow_all)
        different = f" (different: {', '.join(changed)})" if changed else ""
        raise OtherSettings(
            f"run {training.run_id} has other settings{different}: start it under another "
            f"--run-id, with --set resume_from={training.run_id} to continue from its checkpoints"
        ) from None


def _changed_settings(training: TrainingJob) -> list[str]:
    """Return the names of the training settings that differ; none if only options such as --workers do."""
    try:
        before = TrainingOutput(training.output_dir).train_config().to_dict()
    except KubetrainError:
        return []
    return [name for name, value in training.config.to_dict().items() if value != before[name]]


def print_time(time: TrainingTime) -> None:
    for line in account_of(time):
        print(line)


def print_manifests(training: TrainingJob | CommandJob) -> None:
    manifests = as_yaml(manifests_of(training.to_job()))
    if training.launcher is Launcher.AUTO:
        print(NOTE_ON_AUTO)
    print(manifests, end="")


def training_of(options: TrainOptions, code: PackedCode | None) -> TrainingJob:
    """
    Raises:
        InvalidSetting: if an option or setting is invalid.
    """
    pairs = [*options.pairs, *bring_code.as_pairs(code)]
    declared = _declared(options)
    check_settings(declared, options.pairs, options.params, cluster=options.cluster)
    settings = parse_parameters(declared, pairs, options.params)
    for warning in secret_warnings(settings):
        _say(options)(f"warning: {warning}")
    config = TrainConfig.from_dict(settings.get("train_config", {}))
    _check(options, config)
    if code:
        bring_code.check_scripts(code, config.entry)
    training = TrainingJob(
        framework=options.framework,
        config=config,
        pipeline=PIPELINE,
        run_id=(run_id := run_id_of(options)),
        data_dir=Path(DATA_PATH),
        output_dir=Path(OUTPUT_PATH, run_id),
        workers=options.workers,
        processes_per_worker=options.processes_per_worker,
        min_workers=options.min_workers,
        max_workers=options.max_workers,
        launcher=Launcher(options.launcher),
        placement=placement_of(options, settings),
    )
    if options.cluster:
        training = fetching_code(_on_pvcs(training, options), settings)
        bring_code.upload(None if options.dry_run else code, STORE, settings)
        return training
    bring_code.check_is_here(code, settings.get("train_config", {}))
    return _on_folders(training, options)


def _check_options(options: TrainOptions) -> None:
    if options.dry_run and not options.cluster:
        raise InvalidSetting("--dry-run prints what --cluster would create: add --cluster")
    package_of(options.framework)
    if options.command:
        others = ", ".join(COMMAND_FRAMEWORKS)
        raise InvalidSetting(
            f"{options.framework} takes no command: set entry to your program, such as --set entry="
            f"'{json.dumps({'command': options.command})}', see docs/own_code.md; a command as here is for {others}"
        )
    if not options.output:
        raise InvalidSetting("--output is missing: pass a folder, or a PVC on a cluster")


def _packed_code(options: TrainOptions) -> PackedCode | None:
    return bring_code.pack(options.code, without=None if options.cluster else Path(options.output), say=_say(options))


def _say(options: TrainOptions) -> say.Say:
    return comment if options.dry_run else say.print_line


@contextmanager
def _code_here(options: TrainOptions, code: PackedCode | None) -> Iterator[None]:
    """Unpack the code for the processes of a job on this machine."""
    with bring_code.unpacked_apart(None if options.cluster else code, Path(options.output) / ".code") as variables:
        os.environ.update(variables)
        yield


def _declared(options: TrainOptions) -> list[Parameter]:
    names = ("train_config", "placement") if options.cluster else ("train_config",)
    return [parameter for parameter in PARAMETERS if parameter.name in names] + (STORE if options.cluster else [])


def run_id_of(options: TrainOptions) -> str:
    return options.run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def placement_of(options: TrainOptions, settings: Mapping[str, Any]) -> Placement:
    restarts = {} if options.max_restarts is None else {"max_restarts": options.max_restarts}
    return Placement.from_dict({**settings.get("placement", {}), **restarts})


def _check(options: TrainOptions, config: TrainConfig) -> None:
    RunParameters(
        dataset_uri="none",  # nothing is synced, so the output may be inside the data
        framework=options.framework,
        train_config=config,
        workers=options.workers,
        processes_per_worker=options.processes_per_worker,
        launcher=options.launcher,
        model_uri=options.output,
        run_id=options.run_id,
    )
    if config.weights_uri:
        raise InvalidSetting(
            f"initial_weights is {config.weights_uri}, but only runs of a pipeline bring weights from S3: use "
            "`kubetrain run`, or name a path under --output"
        )
    if not options.cluster:
        check_on_one_machine(config)
    if not options.cluster and options.launcher != Launcher.AUTO:
        raise InvalidSetting(f"--launcher {options.launcher} applies only to a cluster: add --cluster, or leave it out")


def _on_folders(training: TrainingJob, options: TrainOptions) -> TrainingJob:
    if training.config.data != "synthetic":
        _check_names_folder(options.data)
    training = _with_dataset(training, Path(options.data).resolve())
    return replace(training, output_dir=Path(options.output).resolve() / training.run_id)


def _on_pvcs(training: TrainingJob, options: TrainOptions) -> TrainingJob:
    dataset = dataset_on_pvc(options)
    if not dataset.claim and training.config.data != "synthetic":
        raise InvalidSetting("--data names no PVC: pass PVC or PVC:PATH, or set data=synthetic")
    placement = training.placement.with_default_image(TRAINERS[training.framework])
    return replace(training, dataset_digest=dataset.digest, placement=placement, mounts=dataset.mounts(options.output))


def dataset_on_pvc(options: TrainOptions) -> DatasetPlace:
    """
    Raises:
        InvalidSetting: if --data or --output cannot name a PVC.
    """
    claim, _, path = options.data.partition(":")
    _check_names(claim, path, options.output)
    version = VERSION_PATH.fullmatch(path)
    return DatasetPlace(digest=version[1] if version else "", claim=claim, sub_path=path)


def _check_names(claim: str, path: str, output: str) -> None:
    for option, name in (("--data", claim), ("--output", output)):
        if name:
            check_object_name(option, name)
    if path.startswith("/") or ".." in path.split("/"):
        raise InvalidSetting(f"--data has the path '{path}': give a path in the PVC without a leading / and without ..")


def _with_dataset(training: TrainingJob, folder: Path) -> TrainingJob:
    """Set the folder of the samples, and the digest and number of files if it is a dataset version."""
    if not folder.is_dir() and training.config.data != "synthetic":
        raise KubetrainError(
            f"{folder} is not a directory: pass a dataset version, or a folder of <split>/<class>/<image>"
        )
    version = read_version(folder)
    if version is None:
        return replace(training, data_dir=folder)
    digest, files = str(version.header["digest"]), int(version.header["objects"])
    return replace(training, data_dir=version.data, dataset_digest=digest, dataset_files=files)


def _check_names_folder(data: str) -> None:
    if not data:
        raise InvalidSetting("--data is missing: pass a dataset version or a folder, or set data=synthetic")
    if "://" in data:
        raise InvalidSetting(
            f"--data is {data}, but train reads folders: `kubetrain sync` downloads a dataset, and prints the folder "
            "of its version to pass here"
        )
    if versions := published_versions(Path(data).resolve()):
        raise InvalidSetting(
            f"--data is {data}, which holds the dataset versions that `kubetrain sync` wrote: pass one of them, such "
            f"as the newest, {versions[0].path}"
        )


def cluster_backend(options: TrainOptions) -> AbstractContextManager[JobBackend]:
    from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend

    end_at_hangup(
        "the terminal was closed: the job continues; follow it again with --run-id, or delete it with kubectl"
    )
    return KubernetesBackend.connect(options.namespace)


def _backend(options: TrainOptions, training: TrainingJob) -> AbstractContextManager[JobBackend]:
    if options.cluster:
        return cluster_backend(options)
    return LocalBackend(training.output_dir.parent / ".jobs")
