"""Amounts in print: one form for each purpose, whoever tells them.

Memory and what is stored is told in binary units, as people write it in a spec (``64Gi``). Decimal are what a link
carries, in bytes and by the second, and what data sheets and models' publishers tell: their makers count so.
"""

from __future__ import annotations

GI = 2**30
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
_WHOLE = 1_000_000


def quantity(value: int) -> str:
    """Bytes as an exact Kubernetes quantity, in the largest binary unit that divides them."""
    for unit, factor in (("Ti", 2**40), ("Gi", GI), ("Mi", 2**20), ("Ki", 2**10)):
        if value and value % factor == 0:
            return f"{value // factor}{unit}"
    return str(value)


def size(value: int) -> str:
    """Bytes held, for people: three significant digits in Gi, below one in Mi, below that in Ki; whole ones whole.

    Hundreds of Gi have a decimal too, so that a sum of them is that of its parts.
    """
    if value == 0:
        return "0Mi"
    for unit, factor in (("Ki", 2**10), ("Mi", 2**20)):
        text = _digits(value / factor)
        if float(text) < 1024:
            return f"{text}{unit}" if float(text) >= 1 else "1Ki"
    return f"{_digits(value / GI, 1)}Gi"


def _digits(value: float, least: int = 0) -> str:
    """The number with three significant digits and at least ``least`` decimals, without zeros at their end."""
    text = f"{value:.{max(least, 2 if value < 10 else 1 if value < 100 else 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def enough(value: int) -> str:
    """The fewest whole GiB that hold ``value`` bytes: what a message may tell people to write."""
    return f"{-(-value // GI)}Gi"


def moved(value: int) -> str:
    """Bytes that a link carried, decimal as the rate beside them."""
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.2f} MB"


def rate(bytes_per_second: float) -> str:
    """What a link carries, decimal as links are sold: GB/s from a tenth of one on."""
    return f"{bytes_per_second / 1e9:.2f} GB/s" if bytes_per_second >= 1e8 else f"{bytes_per_second / 1e6:.2f} MB/s"


def number(value: float) -> str:
    """A number with three significant digits, or whole where it is small enough to be read."""
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def big(value: float, unit: str) -> str:
    """An amount of a data sheet, decimal as those are: ``16.4 GB``, ``70.27 TFLOP``; small ones whole."""
    if abs(value) < _WHOLE:
        return f"{number(value)} {'bytes' if unit == 'B' else unit}"
    factor, prefix = next(step for step in _DECIMAL if abs(value) >= step[0])
    scaled = value / factor
    return f"{scaled:,.0f} {prefix}{unit}" if scaled >= 1000 else f"{scaled:.4g} {prefix}{unit}"
