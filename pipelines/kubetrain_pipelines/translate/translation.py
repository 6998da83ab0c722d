"""From manifests to the file that describes a run or one training, with all fields that have no counterpart."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import APPLIED
from kubetrain_components.run.request import Request, merged
from kubetrain_components.run.run_settings import RunSettings
from kubetrain_components.urls import is_placeholder
from kubetrain_pipelines.definitions.pipeline_parameters import DeclaredPipeline
from kubetrain_pipelines.requests.planned_run import check_before_sending, fill_form
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_pipelines.translate.command_jobs import PLACEHOLDER, planned_request, take_command_job
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.entry import UNKNOWN
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.kinds import take_elastic_job, take_pytorch_job, take_queue, take_tf_job
from kubetrain_pipelines.translate.mpi_job import take_mpi_job
from kubetrain_pipelines.translate.ray_job import take_ray_job
from kubetrain_pipelines.translate.read_manifests import Manifests, described, name_of
from kubetrain_pipelines.translate.train_job import framework_of, take_train_job
from kubetrain_trainer.errors import InvalidSetting

PLACEHOLDERS: Request = {"data": {"uri": "s3://<BUCKET>/<DATASET>"}, "model": {"uri": "s3://<BUCKET>/<MODELS>"}}
"""Values of required settings that a manifest does not have. No bucket has such a name, so every run refuses them."""
EXAMPLES: Request = {"data": {"uri": "s3://bucket/dataset"}, "model": {"uri": "s3://bucket/models"}}
EXAMPLE_IMAGE = "image"
PYTORCH_ONLY = {*RunSettings.names_with("only", "pytorch")}
SET_BY_SERVER = (
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.generation",
    "metadata.creationTimestamp",
    "metadata.managedFields",
    "metadata.selfLink",
    "status",
)
TEMPLATE = re.compile(r"\$(\{\w+\}|[A-Za-z_]\w*)")
OF_PROGRAM = re.compile(r"\.(command|args|env)\b|^metadata\.annotations")
ROLES = "master|worker|chief|launcher|node|ps|evaluator"
OTHER_PODS = "pods of a run have other names: read MASTER_ADDR or TF_CONFIG instead, and let nothing wait for a pod"
APPLY = "apply it yourself if pods use it"
MONITORED = "not needed: pods find each other without it, and deploy/monitoring reads the metrics of all runs"
BESIDE = {
    **dict.fromkeys(("Service", "ServiceMonitor", "PodMonitor"), MONITORED),
    "PersistentVolumeClaim": "apply it yourself if pods.pod mounts it: a run creates its own PVCs, with storage.class, "
    "storage.staging_size and storage.output_size",
}
"""The fate of objects beside a job, by kind."""
NO_ETCD = "not needed: workers find each other without etcd"


@dataclass(frozen=True)
class Translation:
    source: str
    pipeline: str
    """The pipeline, or the framework of a job that runs the user's own program."""
    request: Request
    unmapped: list[Unmapped]
    notes: list[str]
    options: tuple[str, ...] = ()
    """Options of `kubetrain train` for such a job."""
    command: tuple[str, ...] = ()
    """The program of such a job, and its arguments."""

    @property
    def missing(self) -> list[str]:
        """The settings and the command that the user has to fill in."""
        uris = {f"{group}.uri": self.request.get(group, {}).get("uri", "") for group in PLACEHOLDERS}
        places = {name: uri.removeprefix("s3://").split("/")[0] for name, uri in uris.items()}
        places["pods.image"] = self.request.get("pods", {}).get("image", "")
        unknown = [name for name, value in places.items() if is_placeholder(value)]
        is_unknown = self.request.get("train", {}).get("entry") == UNKNOWN
        commands = [word for word in self.command if word == PLACEHOLDER]
        return [*unknown, *(["train.entry"] if is_unknown else []), *commands]


def translate(manifests: Manifests) -> Translation:
    """
    Raises:
        InvalidSetting: if the job can be neither a run nor a training.
    """
    draft, job = Draft(name_of(manifests.job)), Fields(deepcopy(manifests.job))
    _drop_state(job)
    _check_filled_in(job)
    take_queue(draft, job)
    runtime, framework = Fields({}), "pytorch"
    match manifests.job["kind"]:
        case "PyTorchJob":
            take_pytorch_job(draft, job)
        case "TFJob":
            framework = "tensorflow"
            take_tf_job(draft, job)
        case "ElasticJob":
            take_elastic_job(draft, job)
        case "MPIJob":
            take_mpi_job(draft, job)
        case "XGBoostJob" | "PaddleJob" | "JAXJob" as kind:
            take_command_job(draft, job, JobKind(kind))
        case "RayJob":
            take_ray_job(draft, job)
        case _:
            runtime, framework = _take_runtime(draft, job, manifests)
            take_train_job(draft, job, runtime)
    image = draft.settings.get("image", "")
    if is_placeholder(image):
        draft.settings["image"] = EXAMPLE_IMAGE
    outcome = _as_training(draft, job) if draft.framework else _as_run(draft, f"train-{framework}")
    if is_placeholder(image):
        outcome["request"]["pods"]["image"] = image
    left = [Unmapped.of(path, value) for item in (job, runtime) for path, value in item.leaves().items()]
    return Translation(
        source=described(manifests.job),
        unmapped=[*left, *draft.unmapped, *_beside(manifests, runtime.path)],
        notes=[*_notes_on_resources(draft), *_notes_on_pods(draft), *draft.notes],
        **outcome,
    )


def _drop_state(manifest: Fields) -> None:
    """Drop the kind, and what the API server has added."""
    manifest.drop("apiVersion", "kind", *SET_BY_SERVER)
    manifest.at("metadata.annotations").content.pop(APPLIED, None)


def _check_filled_in(job: Fields) -> None:
    """Refuse templates, whose variables Kubernetes would not know either. Programs may have variables of a shell."""
    for path, value in job.leaves().items():
        if isinstance(value, str) and TEMPLATE.search(value) and not OF_PROGRAM.search(path):
            raise InvalidSetting(f"{path} is '{value}', as in a template: fill it in, such as with `envsubst`")


def _take_runtime(draft: Draft, job: Fields, manifests: Manifests) -> tuple[Fields, str]:
    reference = job.at("spec.runtimeRef")
    kind = reference.get("kind", str, "ClusterTrainingRuntime")
    runtime = manifests.runtime(kind, name := reference.get("name", str, ""))
    fields = Fields(deepcopy(runtime), f"{kind}/{name}" if runtime else "")
    framework = framework_of(reference, fields)
    if not runtime:
        draft.note(
            f"{kind} {name} is not in the files, so what it sets is missing here: add the output of "
            f"`kubectl get {kind.lower()} {name} -o yaml`"
        )
    job.drop("spec.runtimeRef")
    fields.drop("apiVersion", "kind", "metadata", "status")
    return fields, framework


def _as_run(draft: Draft, pipeline: str) -> dict[str, Any]:
    """Return the pipeline and the settings of a run, with notes on what only another pipeline has."""
    for name in PYTORCH_ONLY & draft.settings.keys() if pipeline == "train-tensorflow" else ():
        if (value := draft.settings.pop(name)) != 1:
            draft.note(f"{pipeline} has no {RunSettings.public_name(name)}, which would be {value}")
    request = merged(PLACEHOLDERS, draft.request)
    definition = DeclaredPipeline(pipeline)
    asked = RequestFile(pipeline=pipeline, request={**request, **merged(request, EXAMPLES)})
    check_before_sending(definition, fill_form(definition.parameters, asked))
    return {"pipeline": pipeline, "request": request}


def _as_training(draft: Draft, job: Fields) -> dict[str, Any]:
    namespace = job.at("metadata").take("namespace", str, "")
    options = ("--namespace", namespace) if namespace else ()
    request = planned_request(draft)
    return {"pipeline": draft.framework, "request": request, "options": options, "command": tuple(draft.command)}


def _notes_on_resources(draft: Draft) -> list[str]:
    default = Placement()
    return [
        f"no {name} is requested, so each pod requests {getattr(default, name)}{limited}: set pods.{name}"
        for name, limited in (("cpu", ""), ("memory", " and is limited to it"))
        if name not in draft.settings
    ]


def _notes_on_pods(draft: Draft) -> list[str]:
    """Name the pods of the job that something waits for or connects to: those of a run have other names."""
    given = json.dumps([draft.settings, draft.command])
    pods = sorted(set(re.findall(rf"\b{re.escape(draft.job)}-(?:{ROLES})-\d+\b", given))) if draft.job else []
    return [f"{', '.join(pods)}: {OTHER_PODS}"] if pods else []


def _beside(manifests: Manifests, runtime: str) -> Iterator[Unmapped]:
    """Name the other objects in the files; an etcd for the rendezvous is not needed any more."""
    endpoint = str(manifests.job.get("spec", {}).get("rdzvEndpoint", ""))
    for other in manifests.others:
        if f"{other['kind']}/{name_of(other)}" != runtime:
            is_etcd = endpoint and "etcd" in name_of(other)
            yield Unmapped(described(other), "", NO_ETCD if is_etcd else BESIDE.get(other["kind"], APPLY))
