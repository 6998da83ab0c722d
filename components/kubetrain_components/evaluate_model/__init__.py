"""Evaluate a model on the test split, and write metrics and a report."""

import logging

# Must be set before matplotlib is imported, which says in each new container that it has looked for fonts.
logging.getLogger("matplotlib.font_manager").setLevel(logging.WARNING)
