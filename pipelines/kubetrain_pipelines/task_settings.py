"""What every task of our pipelines has in common, and what some need besides."""

from typing import Any

from kfp import dsl, kubernetes

from kubetrain_components import OUTPUT_PATH
from kubetrain_components.object_store.credentials import VARIABLES
from kubetrain_pipelines import images

MAX_SECONDS = 30 * 24 * 3600
"""For a pod that hangs: whatever takes long has budgets of its own, which end it with a cause."""


def as_step(task: dsl.PipelineTask, reads_as: str) -> dsl.PipelineTask:
    """Run the task in the components' image, never from KFP's cache, under a name that reads as a sentence.

    The cache's key knows neither what lies in S3 nor what lies on a volume: a hit would skip work that is due.
    """
    task.set_container_image(images.COMPONENTS)
    task.set_caching_options(enable_caching=False)
    task.set_display_name(reads_as)
    kubernetes.set_security_context(task, run_as_non_root=True)
    kubernetes.set_timeout(task, MAX_SECONDS)
    return task


def with_own_resources(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """What a step itself needs: the work is done in jobs. Set on the launch task, it would describe its workers."""
    return task.set_cpu_request("100m").set_cpu_limit("2").set_memory_request("512Mi").set_memory_limit("2Gi")


def as_launcher(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """A step that follows a job: moved to another node it would fail the run, though the job goes on."""
    kubernetes.add_pod_label(task, "kubetrain/launcher", "true")  # which deploy/launcher knows it by
    kubernetes.add_pod_annotation(task, "cluster-autoscaler.kubernetes.io/safe-to-evict", "false")
    return task


def with_output(task: dsl.PipelineTask, output_claim: Any) -> dsl.PipelineTask:
    """A step that reads what the training wrote."""
    return kubernetes.mount_pvc(task, pvc_name=output_claim, mount_path=OUTPUT_PATH)


def with_s3_secret(task: dsl.PipelineTask, s3_secret: Any) -> dsl.PipelineTask:
    """Credentials from a secret that may be missing: then the run's service account counts."""
    variables = {name: name for name in VARIABLES}
    return kubernetes.use_secret_as_env(task, s3_secret, variables, optional=True)
