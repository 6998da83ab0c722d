"""KFP settings of the pipelines' tasks: those of every task, and those of some."""

from typing import Any

from kfp import dsl, kubernetes

from kubetrain_components import OUTPUT_PATH
from kubetrain_components.jobs.annotations import KEPT_ON_ITS_NODE
from kubetrain_components.object_store.credentials import VARIABLES
from kubetrain_pipelines.definitions import images

MAX_SECONDS = 30 * 24 * 3600
"""Timeout of a pod that hangs. Jobs have shorter timeouts of their own, which report a cause."""


def as_step(task: dsl.PipelineTask, title: str) -> dsl.PipelineTask:
    """Set the image with its pull secrets, title and timeout of a task, and disable KFP's cache.

    The cache key does not cover data in S3 or on volumes, so a cache hit would skip necessary work.
    """
    task.set_container_image(images.COMPONENTS)
    task.set_caching_options(enable_caching=False)
    task.set_display_name(title)
    kubernetes.set_security_context(task, run_as_non_root=True)
    kubernetes.set_timeout(task, MAX_SECONDS)
    if images.PULL_SECRETS:
        kubernetes.set_image_pull_secrets(task, list(images.PULL_SECRETS))
    return task


def with_own_resources(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """Set the resources of a step's own pod. On the launch task they would apply to the training pods."""
    return task.set_cpu_request("100m").set_cpu_limit("2").set_memory_request("512Mi").set_memory_limit("2Gi")


def as_launcher(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """Protect a step that follows a job from eviction, which would fail the run."""
    kubernetes.add_pod_label(task, "kubetrain/launcher", "true")  # selected by deploy/launcher
    for name, value in KEPT_ON_ITS_NODE.items():
        kubernetes.add_pod_annotation(task, name, value)
    return task


def with_output(task: dsl.PipelineTask, output_claim: Any, s3_secret: Any) -> dsl.PipelineTask:
    """Mount the output PVC, for a step that reads what the training wrote, and add the credentials of a store."""
    return kubernetes.mount_pvc(with_s3_secret(task, s3_secret), pvc_name=output_claim, mount_path=OUTPUT_PATH)


def with_s3_secret(task: dsl.PipelineTask, s3_secret: Any) -> dsl.PipelineTask:
    """Add the credentials in a secret. Without the secret, the service account of the run is used."""
    variables = {name: name for name in VARIABLES}
    return kubernetes.use_secret_as_env(task, s3_secret, variables, optional=True)
