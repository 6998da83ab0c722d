"""What a training does from its first line to the export, whichever framework computes its steps."""
