"""Numbers as text, with units in powers of 1000: `units.size(25_000_000)` is "25 MB"."""


def number(value, whole: bool = True) -> str:
    """Format a float with 3 to 0 decimals by its size, an int in full; "-" for None.

    whole: whether a float without a fraction is shown as an int.
    """
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    magnitude = abs(value)
    if isinstance(value, int) or (whole and value.is_integer() and magnitude < 1e9):
        return f"{int(value):,}"
    if magnitude != 0 and (magnitude < 1e-3 or magnitude >= 1e9):
        return f"{value:.2e}"
    digits = 0 if magnitude >= 1000 else 1 if magnitude >= 100 else 2 if magnitude >= 10 else 3
    return f"{value:,.{digits}f}"


def three_digits(value: float) -> str:
    """Format with three significant digits, from 1,000 on as an integer: 1.5, 25, 1,234."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def scale(largest: float) -> tuple[float, str]:
    """Choose a unit for sizes up to `largest` bytes: (bytes in the unit, its name)."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= factor:
            return factor, unit
    return 1.0, "bytes"


def size(count: float | None) -> str:
    """Format bytes: "1.5 kB", "25 MB"; "-" for None."""
    if count is None:
        return "-"
    factor, unit = scale(count)
    return f"{three_digits(count / factor)} {unit}"


def join(things) -> str:
    """Join things as a sentence does: "0, 1 and 3"."""
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last


def ranks(numbers) -> str:
    """Name ranks: "rank 2", "ranks 0, 1 and 3"."""
    return f"rank{'s' * (len(numbers) > 1)} {join(sorted(numbers))}"


def count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def time(seconds: float) -> str:
    """Format a short time: "40 µs", "1.5 ms", "12.3 s"."""
    if seconds >= 10:
        return f"{three_digits(seconds)} s"
    if 0 < seconds < 0.9995e-3:
        return f"{1e6 * seconds:.3g} µs"
    return f"{three_digits(1e3 * seconds)} ms"


def duration(seconds: float) -> str:
    """Format a long time: "3.2 s", "45 s", "2 min 5 s", "1 h 10 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def flops(per_second: float) -> str:
    """Format floating-point operations per second: "71.2 GFLOP/s"."""
    for factor, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
        if per_second >= factor:
            return f"{number(per_second / factor)} {unit}"
    return f"{number(per_second / 1e6)} MFLOP/s"
