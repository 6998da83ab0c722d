"""Choose the checkpoint that becomes the model, and verify its hashes."""
