"""Durations and metrics as people read them."""


def describe_seconds(seconds: float) -> str:
    """Return a text such as 42 s, 3 min 07 s or 5 h 20 min."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"


def number(value: float | None) -> str:
    """Return four decimals, or two digits of a number that would be zero. None stands for what is not a number."""
    if value is None:
        return "not a number"
    return f"{value:.2g}" if 0 < abs(value) < 0.00005 else f"{value:.4f}"
