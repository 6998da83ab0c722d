"""`kubetrain train`: run one training job and follow it, or print its manifest."""

import os
import secrets
import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubetrain_components.bring_code.pack import PackedCode
from kubetrain_components.expose_dataset.storage import Storage
from kubetrain_components.interrupts import end_at_hangup, interrupted_by_sigterm
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.follow import OtherSettings
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS
from kubetrain_components.jobs.job_logs import OnLine, important_lines, print_line
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.launch_training.launch import launch_training, with_launcher
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.manifest_text import as_yaml
from kubetrain_components.run.names import SETTINGS
from kubetrain_components.run.parameters import RunParameters, check_on_one_machine
from kubetrain_components.run.request import Request, by_name, merged, parameters_of, without
from kubetrain_components.run.training_time import TrainingTime, account_of
from kubetrain_components.run.transfer_container import with_code
from kubetrain_pipelines.cli.render import NOTE_ON_AUTO, comment
from kubetrain_pipelines.cli.train_places import on_folders, on_pvcs
from kubetrain_pipelines.definitions.images import COMPONENTS, image_warnings
from kubetrain_pipelines.definitions.pipeline_parameters import framework_of
from kubetrain_pipelines.requests import bring_code
from kubetrain_pipelines.requests import say as saying
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.one_machine import for_one_machine
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_pipelines.requests.say import Say
from kubetrain_pipelines.requests.secret_warnings import secret_warnings
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig

PIPELINE = "train"
OF_CODE = {"model.uri", "data.endpoint", "data.secret", "storage.transfer"}
"""The settings of the store that brings code, and keeps the output."""
OF_STORAGE = {name for name, setting in SETTINGS.items() if setting.group == "storage"}
OF_OTHER_STAGES = {
    *(*OF_CODE, *OF_STORAGE),
    *("data.uri", "data.access", "model.gate", "pods.evaluation", "train.skip_unchanged"),
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(AskedRun):
    data: str = ""
    output: str = ""
    run_id: str = ""
    cluster: bool = False
    namespace: str = ""
    quiet: bool = False
    follow_all: bool = False
    dry_run: bool = False
    command: tuple[str, ...] = ()


def train_and_show(options: TrainOptions, asked: RequestFile) -> None:
    _check_options(options)
    options = _with_places(options, asked.request)
    code = _packed_code(options)
    training = training_of(options, asked, code)
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
    kept = f"{options.output}/" if "://" in options.output else f"PVC {options.output}, folder "
    place = f"{kept}{training.run_id}" if options.cluster else f"{training.output_dir}"
    steps = f"trained {result['step']} steps; " if result["checkpoint"] else ""
    print(f"{steps}the model is in {place}/export" if training.config.publishes else f"{steps}the output is in {place}")
    print_time(TrainingTime.from_json(result["time"]))


def _launch_here(training: TrainingJob, backend: JobBackend, on_line: OnLine, *, follow_all: bool) -> dict[str, Any]:
    """Replace the advice to delete the job of a run with other settings: here, the run's output forbids them too."""
    output = TrainingOutput(training.output_dir)
    try:
        return launch_training(training, backend, on_line, follow_all=follow_all)
    except OtherSettings:
        changed = _changed_settings(training)
        names = ", ".join(map(TrainConfig.public_name, changed))
        if changed and output.is_finished() and {*changed} <= {*TrainConfig.names_with("is_changeable")}:
            print(f"run {training.run_id} is complete, so these have no effect: {names}", flush=True)
            finished = replace(training, config=output.train_config())
            return launch_training(finished, backend, on_line, follow_all=follow_all)
        different = f" (different: {names})" if changed else ""
        raise OtherSettings(
            f"run {training.run_id} has other settings{different}: start it under another --run-id, with --set "
            f"train.resume_from={training.run_id} to continue from its checkpoints"
        ) from None


def _changed_settings(training: TrainingJob) -> list[str]:
    """Return the fields of the training settings that differ; none if only settings of the pods do."""
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


def training_of(options: TrainOptions, asked: RequestFile, code: PackedCode | None) -> TrainingJob:
    """
    Raises:
        InvalidSetting: if an option or setting is invalid.
    """
    say = _say(options)
    given = _used(options, bring_code.with_code(asked, code).request, say)
    for warning in secret_warnings(given):
        say(f"warning: {warning}")
    # Nothing is synced, so the output may be inside the data.
    places: Request = {"data": {"uri": "none"}, "model": {"uri": given.get("model", {}).get("uri", options.output)}}
    of_run = {"framework": framework_of(asked.pipeline), "pipeline": PIPELINE, "run_id": run_id_of(options)}
    run = parameters_of(merged(given, places), components_image=COMPONENTS, **of_run)
    _check(options, run)
    check_code = bring_code.check_scripts if options.cluster else bring_code.check_is_here
    for warning in check_code(code, run.train_config):
        say(f"warning: {warning}")
    if not options.cluster:
        return on_folders(run, options.data, options.output)
    if run.train_config.code:
        bring_code.check_store(given.get("model", {}).get("uri", ""))
    training = on_pvcs(with_code(run), options.data, options.output)
    bring_code.upload(None if options.dry_run else code, given)
    return training


def _used(options: TrainOptions, request: Request, say: Say) -> Request:
    """Return the settings that a training uses, and say which ones only another stage of a run does."""
    on_site = request if options.cluster else for_one_machine(request, say)
    brings_code = options.cluster and request.get("train", {}).get("code")
    places = {"storage.output", "storage.output_claim", "storage.output_size"} if options.cluster else {"data.uri"}
    uses_store = brings_code or (options.cluster and "://" in options.output)
    others = OF_OTHER_STAGES - places - (OF_CODE if uses_store else set())
    if unused := [name for name in by_name(on_site) if name in others]:
        say(f"only a whole run uses {', '.join(unused)}: no effect on one training")
    return without(on_site, unused)


def _check_options(options: TrainOptions) -> None:
    if options.dry_run and not options.cluster:
        raise InvalidSetting("--dry-run prints what --cluster would create: add --cluster")
    if options.command:
        others = ", ".join(COMMAND_FRAMEWORKS)
        raise InvalidSetting(
            f"only {others} take a command after --: set train.entry, such as --set train.entry="
            f"{shlex.quote(shlex.join(options.command))}, see docs/own_code.md"
        )


def _with_places(options: TrainOptions, request: Request) -> TrainOptions:
    """Return the options, with the dataset and the output that the file names if no option does."""
    data = options.data or ("" if options.cluster else request.get("data", {}).get("uri", ""))
    storage = request.get("storage", {})
    kept = storage.get("output") or storage.get("output_claim", Storage.output_claim)
    if not (output := options.output or (kept if options.cluster else "")):
        raise InvalidSetting("--output is missing: pass a folder")
    return replace(options, data=data, output=output)


def _packed_code(options: TrainOptions) -> PackedCode | None:
    return bring_code.pack(options, without=None if options.cluster else Path(options.output), say=_say(options))


def _say(options: TrainOptions) -> Say:
    return comment if options.dry_run else saying.print_line


@contextmanager
def _code_here(options: TrainOptions, code: PackedCode | None) -> Iterator[None]:
    """Unpack the code for the processes of a job on this machine."""
    with bring_code.unpacked_apart(None if options.cluster else code, Path(options.output) / ".code") as variables:
        os.environ.update(variables)
        yield


def run_id_of(options: TrainOptions) -> str:
    return options.run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _check(options: TrainOptions, run: RunParameters) -> None:
    if uri := run.train_config.weights_uri:
        raise InvalidSetting(
            f"model.start is {uri}, but only runs of a pipeline bring weights from S3: use `kubetrain run`, or name a "
            "path under --output"
        )
    if not options.cluster:
        check_on_one_machine(run.train_config)


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
