"""Amounts in few characters, for lines of a log."""

_SUFFIXES = ("", "k", "M", "B", "T")


def short(amount: float) -> str:
    """An amount, at least 0, with three digits: 0.57, 987, 12.3k, 4.56M, 7.89B, 1.20T."""
    scaled, power = amount, 0
    # 999.5 would be rounded to four digits.
    while scaled >= 999.5 and power < len(_SUFFIXES) - 1:
        scaled, power = scaled / 1e3, power + 1
    if scaled >= 99.95 or (not power and scaled == int(scaled)):
        return f"{scaled:.0f}{_SUFFIXES[power]}"
    return f"{scaled:.{2 if scaled < 9.995 else 1}f}{_SUFFIXES[power]}"


def duration(seconds: float) -> str:
    """A duration, at least 0 s, in its two largest units: 42s, 3m07, 5h09, 12d04."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}h{minutes:02d}" if hours < 48 else f"{hours // 24}d{hours % 24:02d}"
