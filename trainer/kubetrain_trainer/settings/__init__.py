"""What users set for a training, declared once."""
