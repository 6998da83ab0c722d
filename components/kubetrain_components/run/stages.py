"""The stages of a run, in order. Everything that lists or names stages reads them here."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunStage:
    name: str
    """The folder of its component, and its name in events, job labels and run.json."""
    title: str
    """The name of its task in the Kubeflow Pipelines UI."""
    result_key: str
    """The key of its result in run.json."""

    @property
    def task(self) -> str:
        """The name of its task in a compiled pipeline."""
        return self.name.replace("_", "-")


SYNC = RunStage("sync_dataset", "Sync the dataset", "dataset")
TRAIN = RunStage("launch_training", "Train on several pods", "training")
COLLECT = RunStage("collect_checkpoint", "Collect the model", "checkpoint")
EVALUATE = RunStage("evaluate_model", "Evaluate the model", "evaluation")
PROMOTE = RunStage("promote_model", "Promote the model", "model")
STAGES = (SYNC, TRAIN, COLLECT, EVALUATE, PROMOTE)
"""In order: a run on this machine has succeeded if the last one has finished."""
