"""Defines the pipelines: their steps, parameters and images, and how they compile."""
