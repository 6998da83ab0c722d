"""The commands for runs and schedules in Kubeflow Pipelines."""
