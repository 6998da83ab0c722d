"""The jobs that commands look at: on this machine and in a cluster."""
