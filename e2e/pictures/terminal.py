"""What commands printed, as the picture of a terminal: an SVG of text alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_COLUMN, _LINE, _MARGIN = 7.2, 17, 14
_PROMPT = "$ "
_LEAST = 60


def render(lines: Sequence[str]) -> str:
    """Return the SVG of lines; those that begin with ``$ `` are commands."""
    width = round(max(_LEAST, *map(len, lines)) * _COLUMN + 2 * _MARGIN)
    height = len(lines) * _LINE + 2 * _MARGIN
    texts = "\n".join(_line(line, number) for number, line in enumerate(lines) if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">\n'
        f'<rect width="100%" height="100%" rx="6" fill="#1e2227"/>\n'
        f'<g font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12" fill="#d8dce2">\n'
        f"{texts}\n</g>\n</svg>\n"
    )


def _line(line: str, number: int) -> str:
    """A line of text, stretched to its columns whatever the font: tables stay in line."""
    text = line.rstrip()
    shown = text.lstrip()
    x = _MARGIN + (len(text) - len(shown)) * _COLUMN
    y = _MARGIN + (number + 1) * _LINE - 4
    command = ' fill="#8fd18a" font-weight="bold"' if text.startswith(_PROMPT) else ""
    place = f'x="{x:.1f}" y="{y}" textLength="{len(shown) * _COLUMN:.1f}" xml:space="preserve"'
    return f"<text {place}{command}>{escape(shown, quote=False)}</text>"


def wrapped(text: str, columns: int) -> list[str]:
    """Return the lines of a text, those longer than ``columns`` broken as a terminal of that width does."""
    found = []
    for line in text.rstrip().splitlines():
        found += [line[at : at + columns] for at in range(0, max(1, len(line)), columns)]
    return found
