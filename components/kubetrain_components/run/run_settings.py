"""The settings of a run that are not about its training, its pods or its PVCs."""

from dataclasses import dataclass
from typing import Any, ClassVar

from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.names import check_object_name
from kubetrain_components.object_store.credentials import DEFAULT_SECRET
from kubetrain_components.object_store.open_store import check_endpoint
from kubetrain_components.object_store.store import Access
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import Settings, setting

MAX_WORKERS = 10_000


@dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    GROUP: ClassVar[str] = "run"

    dataset_uri: str = setting(
        "",
        "dataset: an s3, gs, az or hf URI, several by the folder that each becomes, or pvc://CLAIM/PATH to read it "
        "where it is, see docs/datasets.md; to train, with the folders train/, val/ and test/; empty: none, for a "
        "train.entry that brings its own data",
        name="data.uri",
        in_form=True,
    )
    dataset_access: str = setting(
        Access.CREDENTIALS.value,
        "how to access the dataset in S3; anonymous: a public bucket",
        choices=tuple(Access),
        name="data.access",
        in_form=True,
    )
    dataset_include: list[str] = setting(
        [],
        "patterns of the objects to copy, such as train/*.jpg; * also stands for slashes; empty: all",
        name="data.include",
    )
    dataset_exclude: list[str] = setting(
        [], "patterns of the objects not to copy, also of those that data.include names", name="data.exclude"
    )
    s3_endpoint: str = setting("", "URL of the S3 server; empty: AWS", name="data.endpoint", in_form=True)
    s3_secret: str = setting(
        DEFAULT_SECRET,
        "secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; without it, the pods' service account is used",
        name="data.secret",
        only="cluster",
        in_form=True,
    )
    model_uri: str = setting(
        "",
        "URI under which models are published: s3://BUCKET/PREFIX, or a gs:// or az:// URI",
        name="model.uri",
        is_required=True,
        in_form=True,
    )
    gate: str = setting(
        "",
        "conditions that a model must meet to be published, on the test split: accuracy>=0.9, loss<0.3, not worse than "
        "latest by 0.005; empty: none",
        name="model.gate",
        in_form=True,
    )
    workers: int = setting(
        2,
        "training pods, including the Master (PyTorch) or Chief (TensorFlow)",
        minimum=1,
        maximum=MAX_WORKERS,
        name="pods.workers",
        in_form=True,
    )
    min_workers: int = setting(
        0,
        "min pods with which an elastic job continues after losing others; 0: not elastic, all pods restart",
        minimum=0,
        only="pytorch",
        name="pods.min_workers",
        in_form=True,
    )
    max_workers: int = setting(
        0,
        "max pods to which an elastic job grows, if there is room or an autoscaler adds them; 0: as many as workers",
        minimum=0,
        maximum=MAX_WORKERS,
        only="pytorch",
        name="pods.max_workers",
        in_form=True,
    )
    processes_per_worker: int = setting(
        0,
        "processes in each pod; 0: one for each GPU, or one without GPUs",
        minimum=0,
        maximum=64,
        only="pytorch",
        name="pods.processes",
        in_form=True,
    )
    launcher: str = setting(
        Launcher.AUTO.value,
        "what runs the training pods; auto: the first that the cluster has, but never ray",
        choices=tuple(Launcher),
        name="pods.launcher",
        only="cluster",
        in_form=True,
    )
    evaluation_placement: dict[str, Any] = setting(
        {},
        "settings of pods that differ for the evaluation, which has one GPU at most if this sets no gpus",
        name="pods.evaluation",
        only="cluster",
    )
    skip_unchanged: bool = setting(
        False,
        "skip training and keep the latest model if dataset, settings, number of processes and image are unchanged",
        name="train.skip_unchanged",
        only="cluster",
        in_form=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_endpoint("data.endpoint", self.s3_endpoint)
        if not self.s3_secret:
            raise InvalidSetting(
                f"data.secret is empty: leave it at {DEFAULT_SECRET}, which may be missing, if the pods need no secret"
            )
        check_object_name("data.secret", self.s3_secret)


def check_growth(workers: int, min_workers: int, max_workers: int) -> None:
    """
    Raises:
        InvalidSetting: if a job of these numbers of pods cannot shrink to min_workers or grow to max_workers.
    """
    if min_workers > workers:
        raise InvalidSetting(f"pods.min_workers is {min_workers}, more than pods.workers, {workers}: lower it")
    if max_workers and not min_workers:
        raise InvalidSetting(
            f"pods.max_workers is {max_workers}, but only an elastic job grows: set pods.min_workers as well, or leave "
            "it out"
        )
    if max_workers and max_workers < workers:
        raise InvalidSetting(
            f"pods.max_workers is {max_workers}, less than pods.workers, {workers}: raise it, or lower pods.workers"
        )
