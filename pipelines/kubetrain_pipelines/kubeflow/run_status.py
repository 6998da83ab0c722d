"""The status of a run: its state, its stages, and the causes of its failure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kubetrain_pipelines.kubeflow.failure_causes import causes_of, were_canceled, workflows_of
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import RunState
from kubetrain_trainer.errors import RunFailed


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    run: Run
    causes: Sequence[str]
    """One sentence for each failed stage whose cause is known."""

    def to_dict(self) -> dict[str, Any]:
        return {**self.run.to_dict(), "causes": [*self.causes]}

    @property
    def failure(self) -> str:
        """What happened if it has ended without success, such as: failed: worker-0 exited with code 1; else empty."""
        if self.run.state is RunState.FAILED:
            return f"failed: {'; '.join(self.causes) or f'see `kubetrain logs {self.run.id}`, or its page in the UI'}"
        is_other_end = self.run.state.is_final and self.run.state is not RunState.SUCCEEDED
        return f"was {self.run.state}" if is_other_end else ""


def status_of(api: KfpApi, run: Run) -> RunStatus:
    if run.state is not RunState.FAILED:
        return RunStatus(run=run, causes=[])
    workflows = workflows_of(api, run)
    if were_canceled(workflows):
        return RunStatus(run=run.as_canceled(run.created), causes=[])
    return RunStatus(run=run, causes=causes_of(api, run, workflows))


def check_succeeded(api: KfpApi, run: Run) -> None:
    """
    Raises:
        RunFailed: if the run failed or was canceled, with the cause if it is known.
    """
    if failure := status_of(api, run).failure:
        raise RunFailed(f"run {run.id} {failure}")
