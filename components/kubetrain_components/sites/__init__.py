"""Where steps run, with which adapters: one machine, or a Kubernetes cluster."""
