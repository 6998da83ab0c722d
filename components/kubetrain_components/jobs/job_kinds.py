"""The kinds of jobs, with one row of traits for each.

Two functions also depend on the kind: the environment that the operator sets (operator_environment.py) and the
manifest's spec (kubernetes/manifests.py). mypy reports a kind that one of them omits.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

TRAINING_API = "kubeflow.org/v1"
TRAINER_API = "trainer.kubeflow.org/v1alpha1"
RAY_API = "ray.io/v1"
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"
JOB_NAME_LABEL = "training.kubeflow.org/job-name"
RAY_JOB_LABEL = "kubetrain/job"
"""Label of our own: KubeRay's labels of a pod have random names."""
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
INIT_CONTAINER = "init-pytorch"
"""The operator adds it to the Workers of a PyTorchJob with a Master."""

MPI, XGBOOST, PADDLE, JAX = "mpi", "xgboost", "paddle", "jax"
COMMAND_FRAMEWORKS = (MPI, XGBOOST, PADDLE, JAX)
"""Frameworks for which kubetrain has no trainer: their jobs run a command of the user's."""


class JobKind(StrEnum):
    PYTORCH_JOB = "PyTorchJob"
    TF_JOB = "TFJob"
    MPI_JOB = "MPIJob"
    XGBOOST_JOB = "XGBoostJob"
    PADDLE_JOB = "PaddleJob"
    JAX_JOB = "JAXJob"
    TRAIN_JOB = "TrainJob"
    BATCH_JOB = "Job"
    RAY_JOB = "RayJob"

    @property
    def traits(self) -> "Traits":
        return TRAITS[self]


@dataclass(frozen=True, kw_only=True)
class Traits:
    api_version: str
    plural: str
    framework: str = ""
    """Framework whose training this kind of job is for; empty: any, or none."""
    container: str
    """Name of a pod's main container, by which the operator finds it."""
    job_name_label: str
    """Label of a pod that holds the name of its job."""
    index_label: str
    """Label of a pod that holds its number among those of its role."""
    replica_specs: str = ""
    """Field of the spec that holds the pods by role; empty: all pods have one role."""
    port_name: str = ""
    """Name of the port by which the pods of a training find each other."""
    roles: tuple[str, ...] = ()
    """Roles that the operator accepts, the lead role first; empty: any role."""
    requires_lead: bool = False
    """True if a job that is not elastic needs a pod in the lead role, whose success makes the job succeed."""
    can_be_elastic: bool = False
    succeeds_with_lead: bool = False
    """True if the operator reports success although other pods that must succeed may still work."""

    @property
    def lead_role(self) -> str:
        return self.roles[0] if self.roles else ""

    @property
    def resource(self) -> tuple[str, str]:
        """API version and plural, which KubernetesApi.path() takes."""
        return self.api_version, self.plural


_of_operator = partial(Traits, api_version=TRAINING_API, job_name_label=JOB_NAME_LABEL, index_label=REPLICA_INDEX_LABEL)
"""The traits that all kinds of the training operator have."""
TRAITS = {
    JobKind.PYTORCH_JOB: _of_operator(
        plural="pytorchjobs",
        framework="pytorch",
        container="pytorch",
        replica_specs="pytorchReplicaSpecs",
        port_name="pytorchjob-port",
        roles=("Master", "Worker"),
        requires_lead=True,
        can_be_elastic=True,
    ),
    JobKind.TF_JOB: _of_operator(
        plural="tfjobs",
        framework="tensorflow",
        container="tensorflow",
        replica_specs="tfReplicaSpecs",
        port_name="tfjob-port",
        roles=("Chief", "Worker", "PS", "Evaluator"),
    ),
    JobKind.MPI_JOB: _of_operator(
        plural="mpijobs",
        framework=MPI,
        container="mpi",
        replica_specs="mpiReplicaSpecs",
        port_name="mpi-port",
        roles=("Launcher", "Worker"),
        requires_lead=True,
    ),
    JobKind.XGBOOST_JOB: _of_operator(
        plural="xgboostjobs",
        framework=XGBOOST,
        container="xgboost",
        replica_specs="xgbReplicaSpecs",
        port_name="xgboostjob-port",
        roles=("Master", "Worker"),
        requires_lead=True,
        succeeds_with_lead=True,
    ),
    JobKind.PADDLE_JOB: _of_operator(
        plural="paddlejobs",
        framework=PADDLE,
        container="paddle",
        replica_specs="paddleReplicaSpecs",
        port_name="master",
        roles=("Worker",),
    ),
    JobKind.JAX_JOB: _of_operator(
        plural="jaxjobs",
        framework=JAX,
        container="jax",
        replica_specs="jaxReplicaSpecs",
        port_name="jaxjob-port",
        roles=("Worker",),
    ),
    JobKind.TRAIN_JOB: Traits(
        api_version=TRAINER_API,
        plural="trainjobs",
        container="node",
        job_name_label="jobset.sigs.k8s.io/jobset-name",
        index_label=INDEX_LABEL,
        port_name="rendezvous",
        can_be_elastic=True,
    ),
    JobKind.BATCH_JOB: Traits(
        api_version="batch/v1",
        plural="jobs",
        container="main",
        job_name_label="batch.kubernetes.io/job-name",
        index_label=INDEX_LABEL,
        port_name="rendezvous",
        can_be_elastic=True,
    ),
    JobKind.RAY_JOB: Traits(
        api_version=RAY_API,
        plural="rayjobs",
        container="ray",
        job_name_label=RAY_JOB_LABEL,
        index_label=INDEX_LABEL,
        replica_specs="rayClusterSpec",
        port_name="gcs-server",
        roles=("Submitter", "Head", "Worker"),
        requires_lead=True,
    ),
}
TRAINING_KINDS = tuple(kind for kind, traits in TRAITS.items() if traits.api_version == TRAINING_API)
COMMAND_KINDS = tuple(kind for kind, traits in TRAITS.items() if traits.framework in COMMAND_FRAMEWORKS)
PIPELINE_KINDS = tuple(kind for kind in JobKind if kind not in COMMAND_KINDS)
"""Kinds of the jobs that pipelines create."""
