"""Model to metrics and a report, on data it has not seen."""
