"""Checkpoints to the one that becomes the model, every byte verified."""
