"""The folder that a training writes: its layout, checkpoints and model."""
