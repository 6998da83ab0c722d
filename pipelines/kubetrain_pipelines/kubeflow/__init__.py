"""Runs and schedules in Kubeflow Pipelines, from the command line."""
