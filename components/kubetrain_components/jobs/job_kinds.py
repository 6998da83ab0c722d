"""The kinds of jobs, with one row of traits for each.

Two functions also depend on the kind: the environment that the operator sets (operator_environment.py) and the
manifest's spec (kubernetes/manifests.py). mypy reports a kind that one of them omits.
"""

from dataclasses import dataclass
from enum import StrEnum

TRAINING_API = "kubeflow.org/v1"
TRAINER_API = "trainer.kubeflow.org/v1alpha1"
REPLICA_TYPE_LABEL = "training.kubeflow.org/replica-type"
REPLICA_INDEX_LABEL = "training.kubeflow.org/replica-index"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
INIT_CONTAINER = "init-pytorch"
"""The operator adds it to the Workers of a PyTorchJob with a Master."""


class JobKind(StrEnum):
    PYTORCH_JOB = "PyTorchJob"
    TF_JOB = "TFJob"
    TRAIN_JOB = "TrainJob"
    BATCH_JOB = "Job"

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

    @property
    def lead_role(self) -> str:
        return self.roles[0] if self.roles else ""

    @property
    def resource(self) -> tuple[str, str]:
        """API version and plural, which KubernetesApi.path() takes."""
        return self.api_version, self.plural


TRAITS = {
    JobKind.PYTORCH_JOB: Traits(
        api_version=TRAINING_API,
        plural="pytorchjobs",
        framework="pytorch",
        container="pytorch",
        job_name_label="training.kubeflow.org/job-name",
        index_label=REPLICA_INDEX_LABEL,
        replica_specs="pytorchReplicaSpecs",
        port_name="pytorchjob-port",
        roles=("Master", "Worker"),
        requires_lead=True,
        can_be_elastic=True,
    ),
    JobKind.TF_JOB: Traits(
        api_version=TRAINING_API,
        plural="tfjobs",
        framework="tensorflow",
        container="tensorflow",
        job_name_label="training.kubeflow.org/job-name",
        index_label=REPLICA_INDEX_LABEL,
        replica_specs="tfReplicaSpecs",
        port_name="tfjob-port",
        roles=("Chief", "Worker", "PS", "Evaluator"),
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
}
TRAINING_KINDS = tuple(kind for kind, traits in TRAITS.items() if traits.api_version == TRAINING_API)
