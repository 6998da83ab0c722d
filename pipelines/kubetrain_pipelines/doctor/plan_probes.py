"""Plan the probe pods, which mount temporary PVCs like those of the run."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.expose_dataset.expose import ExposureMode, plan_exposure
from kubetrain_components.expose_dataset.storage_facts import StorageFacts
from kubetrain_components.jobs.etcd_settings import Endpoint
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.object_store.credentials import VARIABLES
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import transfer_placement
from kubetrain_components.sync_dataset.cluster_sync import wanted_claims
from kubetrain_pipelines.definitions import images
from kubetrain_pipelines.doctor import data, probes
from kubetrain_pipelines.doctor.cluster import Cluster
from kubetrain_pipelines.doctor.pod_program import CA_OF_STEPS
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.model_names import is_own_code


def plan_probes(
    cluster: Cluster, parameters: RunParameters, account: str, s3: Mapping[str, list[str]]
) -> probes.Probes:
    """
    Args:
        account: The service account of the run's steps.
        s3: Arguments of the tests "dataset", by the transfer's pod, and "model", by a step's pod.
    """
    s3 = {**s3, **output_test(parameters)}
    token, storage, config = secrets.token_hex(4), parameters.storage, parameters.train_config
    claims = tuple(probes.probe_claim(_like_existing(cluster, wanted), token) for wanted in wanted_claims(parameters))
    try:
        request = storage.exposure_of(parameters.dataset_uri)
        exposure = plan_exposure(request, storage_facts(cluster, claims[0])) if parameters.syncs else None
    except InvalidSetting:  # reported by the exposure check
        exposure = None
    return probes.Probes(
        claims=claims,
        exposure=exposure,
        step=probes.step_job(token, step_placement(cluster, parameters, account), _only(("model",), s3)),
        writer=probes.writer_job(token, transfer_placement(parameters), claims, _only(("dataset", "output"), s3)),
        reader=probes.reader_job(
            token,
            parameters.placement,
            exposure.claim if exposure else next((claim["metadata"]["name"] for claim in claims), ""),
            is_ours=exposure is None or exposure.mode is not ExposureMode.STATIC,
            etcd=etcd_test(parameters.placement),
        ),
        task=probes.task_job(token, parameters) if is_own_code(config) else None,
        stores=[*s3],
    )


def output_test(parameters: RunParameters) -> dict[str, list[str]]:
    """Return the arguments of the test of the store that keeps the output, by a pod with the sidecar's credentials."""
    uri = parameters.storage.output if parameters.framework else ""
    return {"output": [uri, parameters.s3_endpoint]} if uri else {}


def etcd_test(placement: Placement) -> dict[str, list[str]]:
    """Return the arguments of the test of your etcd; an etcd of the job's own does not exist yet."""
    if not placement.rdzv_endpoint:
        return {}
    endpoint = Endpoint.parse(placement.rdzv_endpoint)
    conf = {**placement.rdzv_conf, "protocol": endpoint.protocol}
    return {"etcd": [f"{endpoint.host}:{endpoint.port}", ",".join(f"{name}={value}" for name, value in conf.items())]}


def step_placement(cluster: Cluster, parameters: RunParameters, account: str) -> Placement:
    """Return what Kubeflow Pipelines gives to the pod of a step, which has none of the run's placement settings."""
    keys = {key: {"name": parameters.s3_secret, "key": key, "optional": True} for key in VARIABLES}
    source = cluster.ca_of_steps()
    mounts = [{"name": "custom-ca", "mountPath": str(CA_OF_STEPS.parent)}] if source else []
    spec = {
        "imagePullSecrets": [{"name": name} for name in images.PULL_SECRETS],
        "serviceAccountName": account,
        "volumes": [{"name": "custom-ca", **source}] if source else [],
    }
    return Placement(
        image=parameters.components_image,
        env={key: {"secretKeyRef": reference} for key, reference in keys.items()},
        pod=pod_patch(spec, {"volumeMounts": mounts}),
    )


def _only(names: Sequence[str], s3: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: s3[name] for name in names if name in s3}


def storage_facts(cluster: Cluster, claim: dict[str, Any]) -> StorageFacts:
    classes = cluster.if_allowed(lambda: cluster.storage_classes) or []
    found = data.class_named(claim["spec"].get("storageClassName") or "", classes)
    return StorageFacts.read(claim, found)


def _like_existing(cluster: Cluster, wanted: WantedClaim) -> WantedClaim:
    """Adopt the access mode and storage class of the PVC if it exists."""
    found = cluster.claim(wanted.name)
    if found is None:
        return wanted
    modes = found["spec"]["accessModes"]
    mode = wanted.access_mode if wanted.access_mode in modes else modes[0]
    return replace(wanted, access_mode=mode, storage_class=found["spec"].get("storageClassName") or "")
