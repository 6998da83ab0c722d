"""Reports a training: its log lines, metrics, report page and where its time went."""
