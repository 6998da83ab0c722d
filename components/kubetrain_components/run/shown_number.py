"""How a metric is shown."""


def number(value: float | None) -> str:
    """Return four decimals, or two digits of a number that would be zero. None stands for what is not a number."""
    if value is None:
        return "not a number"
    return f"{value:.2g}" if 0 < abs(value) < 0.00005 else f"{value:.4f}"
