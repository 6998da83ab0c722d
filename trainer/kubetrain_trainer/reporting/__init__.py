"""What a training tells: its log lines, metrics and report, and where its time went."""
