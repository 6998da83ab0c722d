"""The places that `kubetrain train` reads and writes: folders of this machine, or PVCs of a cluster."""

import re
from dataclasses import replace
from pathlib import Path

from kubetrain_components import DATA_PATH, OUTPUT_PATH
from kubetrain_components.jobs.names import check_object_name
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import in_image, with_output
from kubetrain_components.sync_dataset.publish import published_versions, read_version
from kubetrain_pipelines.definitions.images import TRAINERS
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

VERSION_PATH = re.compile(r"versions/([0-9a-f]{16})/data")


def on_folders(run: RunParameters, data: str, output: str) -> TrainingJob:
    """
    Raises:
        KubetrainError: if the dataset is not a folder that a training can read.
    """
    if not data and run.train_config.entry:
        print("no dataset: your script brings its own data; name one with --data", flush=True)
        return TrainingJob.of(run, data_dir=Path(), output_dir=Path(output).resolve() / run.run_id)
    is_synthetic = run.train_config.data == "synthetic"
    if not is_synthetic:
        _check_names_folder(data)
    folder = Path(data).resolve()
    training = TrainingJob.of(run, data_dir=folder, output_dir=Path(output).resolve() / run.run_id)
    if not folder.is_dir() and not is_synthetic:
        raise KubetrainError(
            f"{folder} is not a directory: pass a dataset version, or a folder of <split>/<class>/<image>"
        )
    if not (version := read_version(folder)):
        return training
    digest, files = str(version.header["digest"]), int(version.header["objects"])
    return replace(training, data_dir=version.data, dataset_digest=digest, dataset_files=files)


def on_pvcs(run: RunParameters, data: str, output: str) -> TrainingJob:
    """
    Raises:
        InvalidSetting: if data or output cannot name a PVC, and output no store.
    """
    claim, store = ("", output) if "://" in output else (output, "")
    dataset = dataset_on_pvc(data, claim)
    if not dataset.claim and run.train_config.data != "synthetic":
        raise InvalidSetting("--data names no PVC: pass PVC or PVC:PATH, or set data.format=synthetic")
    places = {"data_dir": Path(DATA_PATH), "output_dir": Path(OUTPUT_PATH, run.run_id)}
    kept = replace(run, storage=replace(run.storage, output=store))
    placed = with_output(in_image(kept, TRAINERS[run.framework]))
    return TrainingJob.of(placed, dataset_digest=dataset.digest, mounts=dataset.mounts(claim), **places)


def dataset_on_pvc(data: str, output: str) -> DatasetPlace:
    """
    Raises:
        InvalidSetting: if data or output cannot name a PVC.
    """
    claim, _, path = data.partition(":")
    for option, name in (("--data", claim), ("--output", output)):
        if name:
            check_object_name(option, name)
    if path.startswith("/") or ".." in path.split("/"):
        raise InvalidSetting(f"--data has the path '{path}': give a path in the PVC without a leading / and without ..")
    version = VERSION_PATH.fullmatch(path)
    return DatasetPlace(digest=version[1] if version else "", claim=claim, sub_path=path)


def _check_names_folder(data: str) -> None:
    if not data:
        raise InvalidSetting("--data is missing: pass a dataset version or a folder, or set data.format=synthetic")
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
