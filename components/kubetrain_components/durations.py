"""Durations as people read them."""


def describe_seconds(seconds: float) -> str:
    """Return a text such as 42 s, 3 min 07 s or 5 h 20 min."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {whole % 60:02} s" if minutes else f"{whole} s"
