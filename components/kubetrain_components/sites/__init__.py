"""The sites that steps run on, with their adapters: one machine and a Kubernetes cluster."""
