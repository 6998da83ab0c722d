"""The settings of a training, declared once."""
