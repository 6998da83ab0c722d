"""The findings of the probe pods. Pure functions."""

from collections.abc import Iterator

from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_pipelines.doctor.finding import Finding, missing, ok, unknown, warning
from kubetrain_pipelines.doctor.pod_program import ERROR, WARNING
from kubetrain_pipelines.doctor.probes import Outcome, Outcomes, Probes
from kubetrain_trainer.errors import KubetrainError

IMAGE_TROUBLES = (TroubleKind.IMAGE_PULL, TroubleKind.BAD_IMAGE_NAME)
PROVIDE_IMAGE = (
    "run `make images`, push the images to a registry that the nodes can pull from, and set them:\n"
    "--set pods.image=REGISTRY/trainer-pytorch:0.1.0 --set storage.transfer.image=REGISTRY/components:0.1.0\n"
    "if the registry requires credentials: set imagePullSecrets of pods.pod"
)
PROVIDE_STEP_IMAGE = (
    "push the components image to a registry that the nodes can pull from, name it in [tool.kubetrain.images] of "
    "pyproject.toml, and compile again\n"
    "if the registry requires credentials: image_pull_secrets in [tool.kubetrain], or those of the service account"
)
OTHER_STORAGE = (
    "use storage that supports fsGroup: --set storage.class=ANOTHER\n"
    "or run as the owner of its folder: --set pods.user=UID"
)
OTHER_EXPOSURE = "--set storage.exposure=shared, or another storage class"
FIX_ETCD = "correct endpoint or the files in pods.rendezvous, or leave endpoint out for an etcd of the job's own"
FIX_TASK = (
    "correct model.name or train.entry, bring your folder with --code, or build an image of the trainer that contains "
    "your code: --set pods.image=REGISTRY/IMAGE"
)
FIX_S3 = "correct the URI, data.endpoint (as pods reach it) or the secret, or grant access"
FIX_S3_OF_STEP = (
    f"{FIX_S3} to the service account of the runs; for a private CA, set CABUNDLE_CONFIGMAP_NAME on the deployment "
    "ml-pipeline"
)
UPDATE_SERVER = "update the server, or change its policy"
PACK = "pack the images into tar shards with `kubetrain pack`, and train on these: --set data.format=tar_shards"
EXPECTED = "what it says; nothing, if the module needs a GPU or the dataset while it is imported"
REMEDIES = {"task": EXPECTED, "dataset": PACK, "model": UPDATE_SERVER}
"""Remedies of warnings, by the test that warns."""


def judge_outcomes(probes: Probes, outcomes: Outcomes) -> Iterator[Finding]:
    step, writer, reader = (job.placement.image for job in (probes.step, probes.writer, probes.reader))
    yield _judge_image(step, outcomes.step, PROVIDE_STEP_IMAGE).named("step image")
    if "model" in probes.stores:
        yield _judge_test("model", outcomes.step, FIX_S3_OF_STEP).named("S3 model")
    yield _judge_image(writer, outcomes.writer, PROVIDE_IMAGE).named("components image")
    if probes.claims:
        yield _judge_test("write", outcomes.writer, OTHER_STORAGE).named("write")
    for name in ("dataset", "output"):
        if name in probes.stores:
            yield _judge_test(name, outcomes.writer, FIX_S3).named(f"S3 {name}")
    yield _judge_image(reader, outcomes.reader, PROVIDE_IMAGE).named("trainer image")
    if probes.claims:
        yield _judge_test("read_only", outcomes.reader, OTHER_EXPOSURE).named("read-only mount")
    if outcomes.task is not None:
        yield _judge_test("task", outcomes.task, FIX_TASK).named("own code")
    if probes.reader.placement.rdzv_endpoint:
        yield _judge_test("etcd", outcomes.reader, FIX_ETCD).named("etcd")


def _judge_image(image: str, outcome: Outcome, remedy: str) -> Finding:
    if not isinstance(outcome, KubetrainError):
        return ok(f"{image} starts in a pod")
    if _is_of_image(outcome):
        return missing(f"{image}: {outcome}", remedy)
    return unknown(f"not tested: {outcome}")


def _judge_test(name: str, outcome: Outcome, remedy: str) -> Finding:
    if isinstance(outcome, JobFailed) and not _is_of_image(outcome):
        return missing(str(outcome), remedy)
    if isinstance(outcome, KubetrainError):
        return unknown(str(outcome))
    seen = outcome.get(name, f"{ERROR}the pod did not report it")
    if seen.startswith(ERROR):
        return missing(seen.removeprefix(ERROR), remedy)
    if seen.startswith(WARNING):
        return warning(seen.removeprefix(WARNING), REMEDIES[name])
    return ok(seen)


def _is_of_image(error: KubetrainError) -> bool:
    return isinstance(error, JobFailed) and error.trouble in IMAGE_TROUBLES
