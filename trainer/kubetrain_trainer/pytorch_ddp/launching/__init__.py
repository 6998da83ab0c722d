"""Starts and watches a pod's training processes by torchrun."""
